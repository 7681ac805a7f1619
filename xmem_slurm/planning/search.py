"""Which ways of training a job on a site's GPUs are the best that fit? The most promising are run
dry until enough do.

What is advised has been seen in a dry run of the very script that would be submitted, with the
lever seen to have worked. What is ruled out needs more by a lower bound than its GPU has. When time
is out the answer is the best so far.
"""

import heapq
import itertools
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from xmem_slurm.dryrun import ranks
from xmem_slurm.dryrun.array_tasks import may_differ
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.dispatch import InTurn
from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.job import Job, from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.planning import bounds, deepspeed_json, forecast, speed
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.changes import changed, files_for
from xmem_slurm.planning.host_memory import host_memory
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import EXPANDABLE, METHODS
from xmem_slurm.planning.space import Space
from xmem_slurm.sizing import kernels
from xmem_slurm.sizing.dry_runs import kind_of, needs_at_least, room_on, without_kernels
from xmem_slurm.sizing.estimate import Estimate, estimate
from xmem_slurm.sizing.host_memory import NodeMemory
from xmem_slurm.sizing.margins import NO_EXPERIENCE, Experience
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.state.signals import Signalled
from xmem_slurm.trace import Category
from xmem_slurm.work import Work

if TYPE_CHECKING:
    from xmem_slurm.trace import Trace

Objective = Literal["cost", "time", "fewest"]
_Waiting = tuple[float, float, int, int, Candidate]
"""What a candidate promises, what its GPUs cost, what its dry run will, and a number that keeps
equals in order."""
_DryRun = tuple[
    tuple[str, int], bytes | None, tuple[str, ...], frozenset[tuple[str, str]], int | None
]
"""What one is of: the kind of GPU, the job, and the task of its array."""
Status = Literal["verified", "too large", "host", "ruled out", "failed"]

LEAST_SECONDS = 20.0
"""Of CPU time that a dry run gets however little is left: with less it would come to nothing."""
LEAST_AT_ONCE = 2
"""So many are run at once even where one is wanted, if so many can be."""
LATER = 1e9
"""Added to what a candidate promises, that others be tried before."""
UNLIKELY = LATER / 2
"""The same, where its dry run is not expected to answer, or it to fit."""
UNCOMPARED = UNLIKELY / 2
"""The same, where no speed of it is known: what can be compared comes first."""
NEAR = 1.0
"""What is expected to need more than so much of its GPU is not tried before what is not."""


@dataclass(frozen=True)
class Row:
    """One candidate, and what is known of it.

    "verified" and "too large" are of a dry run, whose `estimate` it is; "host" is of one that fits
    its GPUs, but not the host memory of their nodes; "ruled out" by a lower bound; "failed" is one
    whose dry run gave none, and `why` says why. `bound_bytes` are needed by that bound, or by a dry
    run that was over as it needed too much. `seconds` are of one sample of the whole job, for
    comparing alone; None where that is not known, and `why_no_time` says why of what was run.
    `cost` is that by the site's prices.
    """

    candidate: Candidate
    status: Status
    job: Submission | None = None
    estimate: Estimate | None = None
    bound_bytes: int = 0
    seconds: float | None = None
    cost: float | None = None
    why: str = ""
    host: NodeMemory | None = None
    why_no_time: str = ""
    after_seconds: float = 0.0
    """Of the budget, that were spent when this was known."""


@dataclass(frozen=True)
class Ways:
    """The job as it is, and the ways that were looked at: first those that are verified, best
    first.
    """

    base: Base
    rows: Sequence[Row]
    objective: Objective
    dry_runs: int
    not_tried: int
    not_ranked: str = ""
    """Why the ways are not ranked by speed; "" where they are."""
    of_another_batch: Sequence[int] = ()
    """The numbers of GPUs that were asked for, and with which an optimizer step would have more
    samples, or fewer."""
    was_interrupted: bool = False
    """Whether Ctrl-C ended the search."""
    tried_next: Sequence[Candidate] = ()
    """Of those that were not tried and are expected to fit, the most promising, best first."""
    task: int | None = None
    """The task of an array that is planned for..."""
    array_tasks: Sequence[int] = ()
    """...of those that were run, where others may need other amounts."""
    seconds: float = 0.0
    """Of the budget, that all dry runs took."""
    without_kernels: Sequence[str] = ()
    """Why options are left out that the job's torch cannot run on."""

    @property
    def verified(self) -> Sequence[Row]:
        """What is advised."""
        return [row for row in self.rows if row.status == "verified"]


@dataclass
class Search:
    """A search under way. `order` is that of the job as it is written; its budget is for one dry
    run.
    """

    order: DryRunOrder
    job: Submission
    space: Space
    objective: Objective
    top: int
    seconds: float
    """Of CPU time, for all dry runs together; no other one begins once so much is spent."""
    vary: BatchLever | None = None
    tell: Callable[[str], None] = lambda _: None
    put: Callable[[Path, bytes], None] = lambda *_: None
    """Writes a file that a way needs."""
    experience: Experience = NO_EXPERIENCE
    can_interrupt: bool = False
    """Whether Ctrl-C ends the search with the best so far, where something was found that fits."""
    rows: list[Row] = field(default_factory=list)
    under_way: list[Candidate] = field(default_factory=list)
    brief: bool = False
    """Whether it is enough to see training: the job as it is written was seen to do nothing else on
    a GPU."""
    task: int | None = None
    """The task of an array that is run; None where the job is none."""
    array_tasks: Sequence[int] = ()
    """Those that were run as they are written, where others may need other amounts."""
    arch_list: Sequence[str] = ()
    """What the job's torch has kernels for, once that was seen."""
    without_kernels: Sequence[str] = ()
    """The options that it has none for: they are left out."""
    runs: int = 0
    spent: float = 0.0

    def plan(self, run_all: InTurn) -> Ways:
        """Return the plan, by dry runs that `run_all` makes.

        Raises:
            NoEstimate: the job as it is written cannot be run dry.
            Signalled: a signal ends it before there is an answer.
        """
        as_written, took = self._on_the_largest(run_all)
        trace, copies = as_written.largest.trace, own_files.data_folder("deepspeed")
        self.base = Base(
            self.job, trace, self.vary, deepspeed_json.find(trace, self.order.job.folder, copies)
        )
        seen = trace.seen
        self.brief = (
            seen is not None
            and all(phase.step <= forecast.STEPS for phase in seen.phases)
            and seen.evaluation is None
            and not seen.checkpoints
        )
        self.persistent = bounds.persistent_of(self.base.trace)
        self.work = speed.work_of(self.base.trace)
        self.activations, self.run_seconds = forecast.Activations(), forecast.RunSeconds()
        gpus = {name: self.space.gpus[name] for name in self.space.options}
        self.hardware = {
            name: speed.hardware(name, gpu, self.space.site) for name, gpu in gpus.items()
        }
        self._learn_from(as_written, took)
        waiting = self._waiting()
        try:
            self._verify(waiting, run_all)
        except Signalled as signalled:
            fits = any(row.status == "verified" for row in self.rows)
            if not (self.can_interrupt and signalled.number == signal.SIGINT and fits):
                raise
            return self._interrupted(waiting)
        return self._planned(waiting)

    def _on_the_largest(self, run_all: InTurn) -> tuple[Estimate, Spent]:
        """Run the job as it is written on the largest GPU that its torch has kernels for, and leave
        those out that it has none for. What it has is known once it was run on any.
        """
        options = self.space.options
        for option in sorted(options, key=lambda name: -self.space.gpus[name].total_bytes):
            if not self._has_kernels(option):
                continue
            try:
                found = self._as_written(run_all, option)
            except NoEstimate as error:
                if self._has_kernels(option):
                    raise
                lacking = error
            else:
                with_kernels = list(filter(self._has_kernels, options))
                self.without_kernels = [name for name in options if name not in with_kernels]
                self.space = replace(self.space, on=with_kernels)
                return found
        raise lacking

    def _has_kernels(self, option: str) -> bool:
        """Whether the job's torch runs on an option's GPUs, as far as is known."""
        return kernels.run_on(self.arch_list, self.space.gpus[option].capability)

    def _as_written(self, run_all: InTurn, option: str) -> tuple[Estimate, Spent]:
        """Run the job as it is written: of an array its ends, as an estimate does, or the tasks
        that are named. What needs the most of them is planned for.
        """
        job, named = self.order.job, self.order.array_tasks
        tasks: Sequence[int | None] = named or job.array[:2] or [None]
        found = dict[int | None, tuple[Estimate, Spent]]()
        for task in tasks:
            self.task = task
            (found[task],) = run_all(partial(next, iter([self._run(self.job, option)]), None))
        traces = [[rank.trace for rank in written.ranks] for written, _ in found.values()]
        if named or (len(tasks) > 1 and may_differ(job, traces)):
            self.array_tasks = [task for task in tasks if task is not None]
        self.task = max(found, key=lambda task: found[task][0].required_bytes)
        return found[self.task]

    def _interrupted(self, waiting: list[_Waiting]) -> Ways:
        """Return what is known so far; what was under way was not tried."""
        tried = [row.candidate for row in self.rows]
        for candidate in self.under_way:
            if candidate not in tried:
                self._push(waiting, candidate)
        return replace(self._planned(waiting), was_interrupted=True)

    def _learn_from(self, as_written: Estimate, took: Spent) -> None:
        training = self.base.training
        self.run_seconds.learn(self.base.trace, took)
        if training.micro_batch:
            some = Candidate(
                "", 1, 1, self.space.methods[0], 1, training.micro_batch, 1, training.checkpointing
            )
            self.activations.learn(some, as_written, self.persistent.total)

    def _waiting(self) -> list[_Waiting]:
        """Return the candidates that no bound rules out, as a heap: the most promising is first."""
        heap: list[_Waiting] = []
        self.number = itertools.count()
        for candidate in self.space.all_of(self.base):
            bound_bytes = bounds.bound(self.base, self.persistent, candidate)
            gpu = self.space.gpus[candidate.option]
            if bound_bytes > room_on(gpu):
                self.rows.append(Row(candidate, "ruled out", bound_bytes=bound_bytes))
            else:
                self._push(heap, self._near(candidate))
        return heap

    def _near(self, candidate: Candidate) -> Candidate:
        """Return it with the largest batch that is expected to fit, or to be near it."""
        while not self._is_near(candidate):
            less = self.space.smaller(self.base, candidate)
            if less is None:
                return candidate
            candidate = less
        return candidate

    def _push(self, heap: list[_Waiting], candidate: Candidate) -> None:
        """Let it wait; of equals first what is cheaper to have and to run dry."""
        price = candidate.gpus * self.space.site.option[candidate.option].cost
        heapq.heappush(
            heap,
            (self._promise(candidate), price, candidate.accumulation, next(self.number), candidate),
        )

    def _promise(self, candidate: Candidate) -> float:
        """Return what is to be kept low, as it is expected. What may not fit, or not end in time,
        comes late.

        Last comes what is offloaded or tensor parallel: of the latter no collectives are known
        before a dry run.
        """
        work = None
        if self.work is not None:
            work = forecast.work(self.base, self.work, self.persistent, candidate)
        seconds, cost = self._price(candidate, work)
        price = {"time": seconds, "cost": cost, "fewest": candidate.gpus + 1e-3 * (seconds or 0)}[
            self.objective
        ]
        is_last = candidate.method.offloaded or candidate.tensor > 1
        may_answer = (
            self._is_near(candidate) and self.run_seconds.of(candidate) <= self.order.budget.seconds
        )
        later = 0.0 if may_answer else UNLIKELY
        if is_last:
            later = LATER
        return (UNCOMPARED if price is None else price) + later

    def _is_near(self, candidate: Candidate) -> bool:
        """Whether it is expected to fit, or to be near it."""
        kept = bounds.bound(self.base, self.persistent, candidate) + forecast.beside(
            self.persistent, candidate
        )
        return (
            kept + self.activations.of(candidate)
            <= NEAR * self.space.gpus[candidate.option].total_bytes
        )

    def _price(self, candidate: Candidate, work: Work | None) -> tuple[float | None, float | None]:
        """Return the seconds of one sample of the whole job, and what it costs; None where no speed
        is known.
        """
        hardware = self.hardware[candidate.option]
        if work is None or hardware is None:
            return None, None
        samples = candidate.batch or candidate.data_ranks
        seconds = speed.step_seconds(work, hardware) / samples
        return seconds, seconds * candidate.gpus * self.space.site.option[candidate.option].cost

    def _verify(self, heap: list[_Waiting], run_all: InTurn) -> None:
        """Run dry what is most promising, until enough is verified, nothing is left, or the time is
        out.
        """

        def another() -> Orders[tuple[Row, Spent]] | None:
            candidate = self._next(heap)
            if candidate is not None:
                self.under_way.append(candidate)
            return None if candidate is None else self._row(candidate)

        for row, took in run_all(another):
            self.rows.append(replace(row, after_seconds=self.spent))
            self.under_way.remove(row.candidate)
            self._learn(row, took)
            for substitute in self._instead(row) if row.status == "too large" else []:
                self._push(heap, substitute)

    def _next(self, heap: list[_Waiting]) -> Candidate | None:
        """Take the most promising of those that wait, if one is wanted beside those under way.

        Where only one is wanted a second one may begin: seldom does the first one fit. What is not
        expected to fit, or to end in time, is tried where nothing else fits.
        """
        verified, going = sum(row.status == "verified" for row in self.rows), len(self.under_way)
        enough = verified >= self.top or verified + going >= max(self.top, LEAST_AT_ONCE)
        seconds_left = self._seconds_left(going)
        if enough or seconds_left <= 0:
            return None
        alike, first = self._off(heap)
        popped = [*alike, first] if first is not None else alike
        chosen = first
        if first is None or self._promise(first) >= UNLIKELY:
            chosen = next(
                (candidate for candidate in popped if not self._is_under_way(candidate)), None
            )
        if chosen is not None and (verified or going) and self._is_unlikely(chosen, seconds_left):
            chosen = None
        for candidate in popped:
            if candidate is not chosen:
                self._push(heap, candidate)
        return chosen

    def _off(self, heap: list[_Waiting]) -> tuple[list[Candidate], Candidate | None]:
        """Take off the heap the most promising of a method that is not under way, and those before
        it.

        By what is under way more will be known of the latter. Of what waits more may be known than
        when it was pushed.
        """
        alike = list[Candidate]()
        while heap:
            promised, *_, candidate = heapq.heappop(heap)
            near = candidate if candidate.expandable else self._near(candidate)
            if near != candidate or self._promise(candidate) > promised:
                self._push(heap, near)
            elif any(running.method == candidate.method for running in self.under_way):
                alike.append(candidate)
            else:
                return alike, candidate
        return alike, None

    def _is_unlikely(self, candidate: Candidate, seconds: float) -> bool:
        """Whether its dry run is not expected to answer within so many seconds, or it to fit."""
        return self._promise(candidate) >= UNLIKELY or self.run_seconds.of(candidate) > seconds

    def _is_under_way(self, candidate: Candidate) -> bool:
        """Whether its dry run is: on GPUs of the same kind it is the same one."""
        return any(
            replace(running, option=candidate.option) == candidate for running in self.under_way
        )

    def _instead(self, row: Row) -> Iterator[Candidate]:
        """Yield what may fit where a candidate does not: expandable segments, if a replay says so;
        a smaller batch.
        """
        gpu, candidate = self.space.gpus[row.candidate.option], row.candidate
        tried = [] if row.estimate is None or candidate.expandable else row.estimate.ranks
        if tried and all(rank.failure_on(gpu, EXPANDABLE) is None for rank in tried):
            yield replace(candidate, expandable=True)
        less = self.space.smaller(self.base, candidate)
        if less is not None:
            yield replace(less, expandable=False)

    def _learn(self, row: Row, took: Spent) -> None:
        """Take in what a dry run showed, for the order of those to come."""
        if row.estimate is None or row.why:
            return
        largest, persistent = row.estimate.largest, self.persistent
        self.run_seconds.learn(largest.trace, took)
        if row.bound_bytes and not largest.breakdown.get(Category.OPT):
            persistent = replace(persistent, optimizer=0)  # it was over before there was any state
        kept = bounds.bound(self.base, persistent, row.candidate)
        if kept:
            kept += forecast.beside(self.persistent, row.candidate)
            self.activations.learn(row.candidate, row.estimate, kept)

    def _row(self, candidate: Candidate) -> Orders[tuple[Row, Spent]]:
        """Run a candidate dry, and see whether it is what it should be, and fits; return what that
        took, too.
        """
        gpu = self.space.gpus[candidate.option]
        self.tell(f"dry run {self.runs + 1}: {'; '.join(map(str, self.under_way))}")
        try:
            job = changed(self.base, candidate, self.space.site)
            for path, content in files_for(self.base, candidate).items():
                self.put(path, content)
            most_bytes = self._most_bytes(candidate.option)
            estimate, took = yield from self._run(job, candidate.option, most_bytes)
        except (NoEstimate, UsageError) as error:
            return Row(candidate, "failed", why=str(error)), Spent()
        unseen = candidate.is_seen(estimate.largest.trace, self.base.training)
        if unseen:
            why = f"as changed, the job did not train with what was planned: {unseen}"
            return Row(candidate, "failed", job, estimate, why=why), took
        trace = estimate.largest.trace
        seconds, cost = self._price(candidate, speed.work_of(trace))
        no_time = speed.why_no_time(trace, candidate.option, self.hardware[candidate.option])
        host = host_memory(estimate, candidate, self.base, job.request, self.space.site)
        status: Status = "verified" if host.fits else "host"
        bound_bytes = 0
        if replace(self.order, most_bytes=most_bytes).is_exceeded(
            [rank.trace for rank in estimate.ranks]
        ):
            bound_bytes = needs_at_least(estimate) + gpu.context_bytes
        if bound_bytes or not estimate.fits(gpu):
            status = "too large"
        why = ""
        if status == "verified":
            why = yield from self._why_not_advised(candidate, job, trace)
        if why:
            return Row(candidate, "failed", job, estimate, why=why), took
        row = Row(
            candidate,
            status,
            job,
            estimate,
            bound_bytes=bound_bytes,
            seconds=seconds,
            cost=cost,
            host=host,
            why_no_time=no_time,
        )
        return row, took

    def _most_bytes(self, option: str) -> int:
        """Return what fits the largest of the options that have this kind of GPU and share their
        dry runs: a way of which a step allocated more fits none of them, and its run is over.
        """
        kind = kind_of(self.space.gpus[option])
        gpus = [self.space.gpus[name] for name in self.space.options]
        return max(room_on(gpu) for gpu in gpus if kind_of(gpu) == kind)

    def _why_not_advised(
        self, candidate: Candidate, job: Submission, trace: "Trace"
    ) -> Orders[str]:
        """Return why a way that fits is not advised all the same; "" where it is."""
        if self.base.trace.steps and not trace.steps:
            return "its dry run came to no optimizer step"  # what one allocates was not seen
        why = yield from self._why_not_started(candidate, job)
        return f"rank {candidate.gpus - 1} of {candidate.gpus} does not start: {why}" if why else ""

    def _why_not_started(self, candidate: Candidate, job: Submission) -> Orders[str]:
        """Start the last rank of a way that fits, once for so many GPUs on so many nodes; return
        why that fails.

        Method and batch are the same for all ranks, and rank 0 has run with them.
        """
        if candidate.gpus == 1:
            return ""
        places = candidate.gpus, candidate.nodes
        if places not in self._starts:
            gpu = self.space.gpus[candidate.option]
            order = replace(self.order, job=self._of_task(job), gpu=gpu)
            seconds = min(order.budget.seconds, max(LEAST_SECONDS, self._seconds_left(0)))
            budget = SharedBudget(replace(order.budget, seconds=seconds))
            try:
                why = yield from ranks.why_not_started(order, candidate.gpus, budget)
            finally:
                self.spent += budget.spent.seconds
            self._starts[places] = why
        return self._starts[places]

    def _run(
        self, job: Submission, option: str, most_bytes: int | None = None
    ) -> Orders[tuple[Estimate, Spent]]:
        """Run a job dry on an option's kind of GPU, once for all GPUs of that kind; return what
        that took, too. With `most_bytes` it is over after a step that allocated more.
        """
        gpu = self.space.gpus[option]
        key = (
            kind_of(gpu),
            job.script,
            job.argv,
            frozenset(job.environ.items()),
            self.task,
        )
        if key not in self._results:
            self.runs += 1
            order = replace(
                self.order,
                job=self._of_task(job),
                gpu=gpu,
                brief=self.brief,
                most_bytes=most_bytes,
            )
            seconds_left = max(LEAST_SECONDS, self._seconds_left(max(0, len(self.under_way) - 1)))
            budget = SharedBudget(
                replace(order.budget, seconds=min(order.budget.seconds, seconds_left))
            )
            try:
                traces = yield from ranks.run(order, budget)
            finally:
                self.spent += budget.spent.seconds
            # as it took when it was made, so that a second plan goes as the first did
            took = Spent(budget.spent.seconds, budget.made_in_seconds)
            self._results[key] = traces, took
        traces, took = self._results[key]
        self.arch_list = next(
            (trace.arch_list for trace in traces if trace.arch_list), self.arch_list
        )
        if not self._has_kernels(option):
            raise NoEstimate(without_kernels(option, gpu, self.arch_list))
        as_written = (job.script, job.argv) == (self.job.script, self.job.argv)
        experience = self.experience if as_written else self.experience.of_another_way()
        return estimate(traces, option, gpu, experience), took

    def _of_task(self, job: Submission) -> Job:
        """Return what is run of a job, as the task of its array that is planned for."""
        return (
            from_submission(job) if self.task is None else from_submission(job).as_task(self.task)
        )

    def _seconds_left(self, beside: int) -> float:
        """Return the seconds that are left for one more dry run beside so many that are under
        way.
        """
        ended_runs = self.runs - len(self.under_way)
        return self.seconds - self.spent - beside * self.spent / max(1, ended_runs)

    def __post_init__(self) -> None:
        self._results: dict[_DryRun, tuple[Sequence[Trace], Spent]] = {}
        # by how many GPUs and nodes: why the last rank cannot start, "" where it can
        self._starts: dict[tuple[int, int], str] = {}

    def _planned(self, waiting: Sequence[_Waiting]) -> Ways:
        """Return what is known so far, with so many ways waiting to be tried."""
        verified = [row for row in self.rows if row.status == "verified"]
        nodes = max((row.candidate.nodes for row in verified), default=1)
        not_ranked = speed.cannot_rank(nodes, pipelines=False)
        if all(row.seconds is None for row in verified):
            not_ranked = "; ".join(dict.fromkeys(row.why_no_time for row in verified))
        unverified = [row for row in self.rows if row.status != "verified"]
        rows = [
            *self._ranked(verified, ranked=not not_ranked),
            *sorted(unverified, key=lambda row: row.candidate.gpus),
        ]
        others_near = [self._near(candidate) for *_, candidate in waiting]
        tried_next = sorted(filter(self._is_near, others_near), key=self._promise)
        return Ways(
            *(self.base, rows, self.objective, self.runs, len(waiting), not_ranked),
            tried_next=tried_next,
            task=self.task,
            array_tasks=self.array_tasks,
            seconds=self.spent,
            without_kernels=[
                without_kernels(name, self.space.gpus[name], self.arch_list)
                for name in self.without_kernels
            ],
        )

    def _ranked(self, rows: Sequence[Row], *, ranked: bool) -> list[Row]:
        """Return rows best first, and, unless the fewest GPUs are, last those without a time; of
        those that are a tie first what costs less to have, and what changes less.
        """

        def price(row: Row) -> float:
            return row.candidate.gpus * self.space.site.option[row.candidate.option].cost

        def score(row: Row) -> float:
            if self.objective == "fewest":
                return row.candidate.gpus
            if not ranked:
                return price(row)
            figure = row.seconds if self.objective == "time" else row.cost
            return math.inf if figure is None else figure

        classes, best = dict[int, int](), 0.0
        for row in sorted(rows, key=score):
            if not classes or not (
                score(row) == best or (ranked and speed.same_class(best, score(row)))
            ):
                best = score(row)
                classes[id(row)] = len(classes)
            else:
                classes[id(row)] = max(classes.values())
        order = list(METHODS)
        return sorted(
            rows,
            key=lambda row: (classes[id(row)], price(row), order.index(row.candidate.method.name)),
        )


def prices(rows: Sequence[Row], pick: Callable[[Row], float | None]) -> Mapping[int, float]:
    """Return of each row how many times the least of a figure it has, by its place; without those
    that have none.
    """
    figures = {place: figure for place, row in enumerate(rows) if (figure := pick(row))}
    smallest = min(figures.values(), default=1.0)
    return {place: figure / smallest for place, figure in figures.items()}
