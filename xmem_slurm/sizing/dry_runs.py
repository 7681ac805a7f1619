"""What do dry runs say of which GPUs? There is one for each kind of GPU, of rank 0 and others, of
an array's ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import array_tasks, ranks
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import kernels, nccl
from xmem_slurm.sizing.estimate import Estimate, estimate
from xmem_slurm.sizing.margins import NO_EXPERIENCE, Experience
from xmem_slurm.trace import Noted, Trace, cannot_run, fail_on_any_gpu, waits_for_input
from xmem_slurm.units import listed

# Note [Tasks of an array] The ends of an array are run first, as sweeps grow. Where its tasks
# cannot differ (`array_tasks.may_differ`), the ends stand for all. Where they can, what some need
# says little of the others: the sixth may be the one with the large model. So more are run while
# the budget has time, with enough left for another kind of GPU; and unless all were, the job gets
# no smaller GPU than the one that it asks for, and a request that names none stays open. Whoever
# names tasks (--xmem-array-tasks) answers for the others. On other kinds of GPU only the task that
# needed the most is run.

_NAMED_TASKS = 4
"""Tasks that a message proposes to run."""


@dataclass
class DryRunsByKind:
    """The dry runs of one job: one for each kind of GPU, and one budget for all of them.

    What a job allocates depends on the GPU (attention kernels, library workspaces, what the job
    reads of it), so a trace speaks for the GPUs of its own compute capability and number of
    multiprocessors only. All components of a job are shown the same kind at a time.
    """

    order: DryRunOrder
    """What is common to them."""
    gpus: Mapping[str, Gpu]
    budget: SharedBudget
    experience: Experience = NO_EXPERIENCE
    longest: Spent = Spent()  # noqa: RUF009 - a tuple
    results: dict[tuple[str, int], Sequence[Trace] | NoEstimate] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)
    """The tasks of an array that were run, and what each reserved at most."""
    failed_tasks: list[str] = field(default_factory=list)
    tasks_differ: bool = False
    """Whether tasks that were not run may need more than those that were."""

    def on(self, name: str, most_bytes: int | None = None) -> Orders[Sequence[Trace]]:
        """Return the traces of the job on GPUs of the kind that option `name` has; with
        `most_bytes` its run is over once it needs more.

        Raises:
            NoEstimate: there are none.
        """
        kind = self.kind(name)
        if kind not in self.results:
            self.order = replace(self.order, most_bytes=most_bytes)
            self.results[kind] = yield from self._run(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def has_room_for(self, name: str) -> bool:
        """Whether the job was run on this kind of GPU, or can be within the budget."""
        return self.kind(name) in self.results or self.budget.left.has_room_for(self.longest)

    def kind(self, name: str) -> tuple[str, int]:
        """Return the kind of GPU that option `name` has."""
        return kind_of(self.gpus[name])

    def _run(self, name: str) -> Orders[Sequence[Trace] | NoEstimate]:
        """Want the job, or the tasks of its array that stand for it, run on this option's kind of
        GPU.
        """
        try:
            tasks = self.order.array_tasks or self.order.job.array
            if not tasks:
                traces = yield from self._run_job(self.order.job, name)
            elif self.tasks:
                largest_task = max(self.tasks, key=lambda task: self.tasks[task])
                traces = self._of_task(
                    largest_task,
                    (yield from self._run_job(self.order.job.as_task(largest_task), name)),
                )
            else:
                traces = yield from self._run_tasks(tasks, name)
            self.order = ranks.on_another_gpu(self.order, traces)
            return [self._with_array(trace) for trace in traces]
        except NoEstimate as error:
            return error

    def _run_tasks(self, tasks: Sequence[int], name: str) -> Orders[Sequence[Trace]]:
        """Want tasks of an array run: see Note [Tasks of an array].

        Raises:
            NoEstimate: there is none of one that was asked for, or of an end of the array.
        """
        job, named = self.order.job, bool(self.order.array_tasks)
        of_task: dict[int, Sequence[Trace]] = {}
        for task in tasks if named else tasks[:2]:
            of_task[task] = yield from self._run_job(job.as_task(task), name)
            if fail_on_any_gpu(of_task[task]):
                break
        else:
            self.tasks_differ = not named and array_tasks.may_differ(job, of_task.values())
        for task in tasks[2:] if self.tasks_differ else ():
            if not self.budget.left.has_room_for(self.longest.plus(self.longest)):
                break
            try:
                of_task[task] = yield from self._run_job(job.as_task(task), name)
            except NoEstimate as error:
                self.failed_tasks.append(f"task {task}: {error}")
        self.tasks = {task: array_tasks.peak(traces) for task, traces in of_task.items()}
        if not named and not self.tasks_differ:
            return of_task[tasks[0]]  # they are all alike
        self.tasks_differ = self.tasks_differ and self._tasks_not_run > 0
        return [trace for task, traces in of_task.items() for trace in self._of_task(task, traces)]

    def _run_job(self, job: Job, name: str) -> Orders[Sequence[Trace]]:
        before = self.budget.spent
        order = replace(self.order, job=job, gpu=self.gpus[name])
        try:
            traces = yield from ranks.run(order, self.budget)
        finally:
            took = self.budget.spent.since(before)
            self.longest = max(self.longest, took)
        if _certain_but_for_ranks(traces, order.gpu):
            traces = yield from ranks.compared(order, traces, self.budget, took)
        return ranks.whole(traces)

    def _of_task(self, task: int, traces: Sequence[Trace]) -> Sequence[Trace]:
        """Have traces of a task say which it is, where some need other amounts than others."""
        alike = len(set(self.tasks.values())) == 1
        return traces if alike else [replace(trace, array_task=task) for trace in traces]

    @property
    def _tasks_not_run(self) -> int:
        return int(self.order.job.environ.get("SLURM_ARRAY_TASK_COUNT") or 0) - len(self.tasks)

    def _with_array(self, trace: Trace) -> Trace:
        """Say so in the trace if it stands for tasks of an array that were not run, and may need
        more.
        """
        named = bool(self.order.array_tasks)
        if not (self.tasks_differ or named) or self._tasks_not_run <= 0:
            return trace
        count = self.order.job.environ["SLURM_ARRAY_TASK_COUNT"]
        plural = "s" if len(self.tasks) > 1 else ""
        words = f"of the array's {count} tasks only task{plural} {listed(sorted(self.tasks))} ran"
        if not named:
            others = [task for task in self.order.job.array if task not in self.tasks]
            some = ",".join(map(str, sorted(others[:_NAMED_TASKS]))) or "LIST"  # of a long array
            words += f", and they read their number (--xmem-array-tasks={some} runs others)"
        words += "".join(f"; {reason}" for reason in self.failed_tasks)
        return replace(
            trace, doubts=[*trace.doubts, Noted(Doubt.ARRAY, words, self._tasks_not_run)]
        )


def _certain_but_for_ranks(traces: Sequence[Trace], gpu: Gpu) -> bool:
    """Whether nothing is in doubt of a job but whether its other ranks are like the one that was
    run.
    """
    used = [trace for trace in traces if trace.allocations]
    allowed = {Doubt.OTHER_BATCHES} | (
        {Doubt.NCCL} if all(nccl.taken(trace, gpu)[1] for trace in used) else set()
    )
    priced = {
        noted.doubt for trace in used for noted in trace.doubts if noted.doubt.price is not None
    }
    return priced <= allowed and all(trace.came_to_its_end for trace in used)


_NO_INPUT = "it waits for input, which a batch job does not have"


@dataclass
class ComponentEstimates:
    """What the dry runs say of one component. `sure` is the option that it is meant for, `largest`
    the one with the most memory.

    Where the component fails where it is meant for, too, the fault is the job's.
    """

    dry_runs: DryRunsByKind
    component: int
    sure: str
    largest: str
    results: dict[tuple[str, int], Estimate | NoEstimate] = field(default_factory=dict)
    arch_list: Sequence[str] = ()
    """What the job's torch has kernels for, once that was seen."""
    no_share: str = ""
    """Why it was given no share of a GPU on which it fits."""
    no_smaller: str = ""
    """Why it was given no smaller GPU than it asks for, though it fits there."""
    untried: list[str] = field(default_factory=list)
    """Options on which it may fit, for which the budget had no room."""
    cut: set[tuple[str, int]] = field(default_factory=set)
    """Kinds of GPU that were too small for it, of which the run was over as soon as that was seen:
    those estimates say what it needs at the least."""

    def has_kernels(self, name: str) -> bool:
        """Whether the job's torch runs on the GPU of option `name`, as far as is known."""
        return kernels.run_on(self.arch_list, self.dry_runs.gpus[name].capability)

    def on(self, name: str) -> Orders[Estimate]:
        """Return the estimate on the GPU of option `name`, from a dry run of its kind.

        Raises:
            NoEstimate: there is none.
        """
        kind = self.dry_runs.kind(name)
        if kind not in self.results:
            self.results[kind] = yield from self._estimate(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def fits(self, name: str) -> Orders[bool]:
        """Whether the component fits option `name`; on a kind of GPU not tried yet, by a dry run if
        that could succeed.

        It is not tried where the component does not fit by the traces at hand, or where the budget
        has no room for another run, unless it is the one that the component is meant for, which
        gets what is left; and it does not fit where that run fails, as that of a torch that was not
        built for the GPU does. The next option is dearer, never too small. A script that stops by
        itself is told at once.
        """
        gpu = self.dry_runs.gpus[name]
        if not self.has_kernels(name):
            return False
        if self.dry_runs.kind(name) not in self.results:
            may_fit = [
                needs_at_least(result) <= room_on(gpu) if kind in self.cut else result.fits(gpu)
                for kind, result in self.results.items()
                if isinstance(result, Estimate)
            ]
            if may_fit and not any(may_fit):
                return False
            if name != self.sure and not self.dry_runs.has_room_for(name):
                self.untried.append(name)
                return False
        try:
            return (yield from self.on(name)).fits(gpu)
        except NoEstimate as error:
            if error.on_any_gpu:
                raise
            if self.has_kernels(name) and self.has_kernels(self.sure):
                yield from self.on(self.sure)
            return False

    def _most_bytes(self, name: str) -> int | None:
        """Return what a run for option `name` need not go beyond: what fits no GPU of its kind. So
        there is time for larger ones.

        None where it has to be whole: for the largest, which says what is needed if that fits none,
        where other components are run with it, and of tasks of an array, of which the largest is
        looked for.
        """
        dry_runs, job = self.dry_runs, self.dry_runs.order.job
        kind = dry_runs.kind(name)
        is_whole = kind == dry_runs.kind(self.largest) or len(job.gpus) > 1
        if is_whole or dry_runs.order.array_tasks or job.array:
            return None
        return max(room_on(gpu) for gpu in dry_runs.gpus.values() if kind_of(gpu) == kind)

    def _without_what_was_cut(self, name: str, traces: Sequence[Trace]) -> Sequence[Trace]:
        """Return the traces of a run, noting whether it was over as it needed too much: then what
        failed may have missed what the process that was cut would have left.
        """
        order = replace(self.dry_runs.order, most_bytes=self._most_bytes(name))
        used = [trace for trace in traces if trace.allocations]
        if not order.is_exceeded(traces) or all(trace.came_to_its_end for trace in used):
            return traces
        self.cut.add(self.dry_runs.kind(name))
        return [trace for trace in traces if trace.failure is None or order.is_exceeded([trace])]

    def _estimate(self, name: str) -> Orders[Estimate | NoEstimate]:
        """Make an estimate of the component's own traces; all that was read counts, whoever of the
        job read it.
        """
        try:
            traces = yield from self.dry_runs.on(name, self._most_bytes(name))
        except NoEstimate as error:
            return self._without_input(error)
        own_traces = self._without_what_was_cut(
            name, [trace for trace in traces if trace.component == self.component]
        )
        self.arch_list = next(
            (trace.arch_list for trace in own_traces if trace.arch_list), self.arch_list
        )
        files = [file for trace in traces for file in trace.files]
        if len(own_traces) < len(traces) and not any(
            trace.allocations or trace.error for trace in own_traces
        ):
            return NoEstimate(
                "no process of its own used GPU memory in the dry run", files, on_any_gpu=True
            )
        if not self.has_kernels(name):
            return NoEstimate(
                without_kernels(name, self.dry_runs.gpus[name], self.arch_list), files
            )
        try:
            return estimate(own_traces, name, self.dry_runs.gpus[name], self.dry_runs.experience)
        except NoEstimate as error:
            by_itself = fail_on_any_gpu(own_traces)
            excused = any(
                trace.has(Doubt.SET_UP) or (trace.failure is not None and trace.failure.offline)
                for trace in own_traces
            )
            fails = (by_itself or error.fails) and not excused and cannot_run(str(error))
            failed = NoEstimate(str(error), files, on_any_gpu=by_itself or fails, fails=fails)
            return self._without_input(failed)

    def _without_input(self, error: NoEstimate) -> NoEstimate:
        """Say of a script that waits for input what it lacks: with --input only a dry run does."""
        if not waits_for_input(str(error)):
            return error
        if self.dry_runs.order.job.has_input:
            fails, words = False, f"{error}; a dry run has no input (--input)"
        else:
            fails, words = error.fails, f"{_NO_INPUT}; {error}"
        on_any_gpu, busy = error.on_any_gpu, error.busy
        return type(error)(words, error.files, on_any_gpu=on_any_gpu, fails=fails, busy=busy)


def room_on(gpu: Gpu) -> int:
    """Return the bytes that a process can allocate on a GPU at the most."""
    return gpu.total_bytes - gpu.context_bytes


def needs_at_least(estimate: Estimate) -> int:
    """Return the bytes that its largest process allocated, however soon its run was over."""
    return max(rank.replay.peak_allocated_bytes for rank in estimate.ranks)


def kind_of(gpu: Gpu) -> tuple[str, int]:
    """Return what GPUs have in common for which one trace speaks."""
    return gpu.capability, gpu.multiprocessors


def estimate_on(
    name: str,
    basis: Estimate,
    gpus: Mapping[str, Gpu],
    experience: Experience,
) -> Estimate | None:
    """Return the estimate for option `name` by the dry runs that `basis`, another one, was made of.

    None where they were of another kind of GPU: what a job needs there, only a run there can say.
    """
    if kind_of(gpus[name]) != kind_of(gpus[basis.gpu_name]):
        return None
    try:
        return estimate([rank.trace for rank in basis.ranks], name, gpus[name], experience)
    except NoEstimate:
        return None


def without_kernels(name: str, gpu: Gpu, arch_list: Sequence[str]) -> str:
    """Say that the job's torch cannot run on a GPU."""
    compiled = ", ".join(arch_list)
    return (
        f"the job's torch has no kernels for {name} (compute capability {gpu.capability}): it "
        f"has {compiled}"
    )
