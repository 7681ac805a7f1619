"""How wide must margins be here, by what jobs really used? Hierarchical conformal prediction, by
kind of run.

A job's shortfall is what its peak of reserved bytes was above the predicted one, as a share of
that. A job that ran out of GPU memory needed more than there was, nobody knows how much: it is
censored from below, counts among the others, and is never one that a margin is said to cover; once
it ran to its end on a larger GPU, that says how much, or at least how much (`_with_later`). Where
more ran out than may be left uncovered, they stand where they are known to have needed the least,
and less is promised. The scripts of users weigh alike, however many jobs each has: they are alike,
and a sweep of a thousand is one piece of evidence. What is promised is of a job of the next script
(`conformal.margin_of_groups`). Where there are so few that nothing can be promised, what ships
holds.

Known limitations: jobs that were sent to a GPU by an estimate are not those that no estimate has
picked (a site can leave a share of them as they were written); a job that failed before its peak
says nothing.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from xmem_slurm.outcomes.prediction import Prediction
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.sizing import conformal
from xmem_slurm.sizing.conformal import Score
from xmem_slurm.sizing.margins import LearnedMargin, Margin
from xmem_slurm.units import MIB

LEAST_SCRIPTS = 20
"""Fewer than these, by user and script, teach nothing: with 19 the promise of 95 % is the worst of
all seen."""
COVERAGE = 0.95
LAST = 100
"""By how many scripts it is told whether the promise holds still..."""
FALSE_ALARMS = 0.05
"""...and how likely at the most it is denied within a year of a look a day, while it holds."""
_LOOKS = 365
RAN_AGAIN = "ran out of GPU memory, and then to its end: that says how much it needed"


@dataclass(frozen=True)
class Lesson:
    """What one job says: its shortfall, at least that much where it is `censored`; whose, and of
    what kind it was.
    """

    shortfall: float
    censored: bool
    user: int
    script: str
    engine: str
    gpu: str
    unseen: frozenset[str]
    margin: float
    promise: float | None


def lesson(outcome: JobOutcome, *, completed: bool = True) -> Lesson | str:
    """Return what a job says, or why it says nothing; `completed`: nobody says that it was not."""
    predicted, device = outcome.prediction, outcome.device
    if predicted is None or not predicted.reserved_bytes or not predicted.fits_in_bytes:
        return "nothing was predicted"
    if device.capability != predicted.capability and not predicted.sampled:
        return "ran on another kind of GPU than was estimated for"
    if outcome.ran_out:
        shortfall = (outcome.limit_bytes + 2 * MIB) / predicted.fits_in_bytes - 1
    elif outcome.caught_oom:
        return "ran out of GPU memory, and caught that"
    elif not outcome.finished or not completed:
        return "failed, or was not seen to end"
    else:
        shortfall = _shortfall(outcome, predicted)
    return Lesson(
        shortfall,
        outcome.ran_out,
        outcome.user,
        predicted.script,
        predicted.engine,
        predicted.gpu,
        frozenset(predicted.unseen),
        predicted.margin,
        predicted.promise,
    )


def _shortfall(outcome: JobOutcome, predicted: Prediction) -> float:
    """Return what the peak of a job that ran to its end was above the predicted one."""
    if any(device.retries for process in outcome.processes for device in process.devices):
        # It freed its cache to go on: what it held is what there was, and surely enough.
        return outcome.device.reserved / predicted.fits_in_bytes - 1
    return outcome.device.reserved / predicted.reserved_bytes - 1


def _with_later(ran_out: Lesson, outcome: JobOutcome, later: JobOutcome) -> Lesson:
    """Return what a job that ran out says where the same run came to its end `later`, estimated for
    another GPU or for none.

    What that took is held against what was predicted of the job that ran out. On a GPU of the same
    compute capability it says how much was needed, as it does of any job (`lesson`). Kernels of
    others hold more or less: there it is a bound that need not hold, which moves a margin but never
    counts as covered by one. Where it took no more than had been too little, the two differ, and it
    says nothing.
    """
    predicted = outcome.prediction
    assert predicted is not None
    if later.device.reserved <= outcome.limit_bytes:
        return ran_out
    return replace(
        ran_out,
        shortfall=max(ran_out.shortfall, _shortfall(later, predicted)),
        censored=later.device.capability != outcome.device.capability,
    )


def lessons(
    outcomes: Iterable[JobOutcome], failed: Collection[str] = ()
) -> tuple[list[Lesson], Counter[str]]:
    """Return what jobs say, and how often they say nothing, for which reason; `failed` did by
    Slurm's accounting.
    """
    useful: list[Lesson] = []
    nothing = Counter[str]()
    # The latest come first. Of runs that came to their end after those that are looked at: on which
    # GPUs that says how much was needed, and which took the most. An earlier job that ran out is
    # left out on those GPUs alone: else a GPU's margin would be of jobs that did not run out on it.
    taught = set[tuple[int, str, str]]()
    took_most = dict[tuple[int, str], JobOutcome]()
    for outcome in reversed(list(outcomes)):
        completed = all(process.job not in failed for process in outcome.processes)
        answer = lesson(outcome, completed=completed)
        run = outcome.user, outcome.prediction.run if outcome.prediction is not None else ""
        if isinstance(answer, str):
            nothing[answer] += 1
        elif answer.censored and (*run, answer.gpu) in taught:
            nothing[RAN_AGAIN] += 1
        else:
            if answer.censored and run in took_most:
                answer = _with_later(answer, outcome, took_most[run])
            useful.append(answer)
            if not answer.censored and run[1]:
                taught.add((*run, answer.gpu))
        if outcome.finished and completed and run[1]:
            took_most[run] = max(
                took_most.get(run, outcome), outcome, key=lambda each: each.device.reserved
            )
    return useful[::-1], nothing


def by_script(members: Iterable[Lesson]) -> list[list[Lesson]]:
    """Return the jobs of each script of each user."""
    groups = dict[tuple[int, str], list[Lesson]]()
    for member in members:
        groups.setdefault((member.user, member.script), []).append(member)
    return list(groups.values())


def margin(members: Sequence[Lesson], coverage: float = COVERAGE) -> Margin | None:
    """Return the margin of jobs that are alike; None where they are of too few scripts.

    Where too many of them ran out, the promise is as much as the others support.
    """
    scripts = by_script(members)
    if len(scripts) < LEAST_SCRIPTS:
        return None
    scores = [[Score(job.shortfall, job.censored) for job in jobs] for jobs in scripts]
    share, supported = conformal.margin_of_groups(scores, coverage)
    promise = coverage
    if supported < coverage:
        promise = math.floor(100 * supported + 1e-9) / 100  # 0.29 * 100 is less than 29
    if not promise:
        return None
    return Margin(math.ceil(share * 1e4) / 1e4, promise, len(members), len(scripts))


def learn(lessons: Sequence[Lesson], coverage: float = COVERAGE) -> list[LearnedMargin]:
    """Return the margin of each engine, GPU and class of doubt that has enough votes, and of all
    its GPUs together.
    """
    classes = dict[tuple[str, frozenset[str]], list[Lesson]]()
    for member in lessons:
        classes.setdefault((member.engine, member.unseen), []).append(member)
    learned = []
    for (engine, unseen), members in sorted(
        classes.items(), key=lambda item: (item[0][0], sorted(item[0][1]))
    ):
        every = frozenset(member.gpu for member in members)
        for gpus in dict.fromkeys([*(frozenset({gpu}) for gpu in sorted(every)), every]):
            of_kind = margin([member for member in members if member.gpu in gpus], coverage)
            if of_kind is not None:
                learned.append(LearnedMargin(engine, gpus, unseen, of_kind))
    return learned


@dataclass(frozen=True)
class Drift:
    """For what share of jobs a margin was enough, and for what share it was promised: the means
    over `scripts`.
    """

    scripts: int
    enough: float
    promised: float

    @property
    def is_one(self) -> bool:
        """Whether so few are a surprise, where each script's share is independent of the others'
        and at least promised.

        exp(-n KL(enough, promised)) bounds the chance of it (Hoeffding, JASA 58, 1963, theorem 1):
        n shares between 0 and 1, whatever their distributions. As many looks as a year has days
        together come to `FALSE_ALARMS`.
        """
        bound = self.scripts * _divergence(self.enough, self.promised)
        return self.enough < self.promised and bound > math.log(_LOOKS / FALSE_ALARMS)


def _divergence(p: float, q: float) -> float:
    """Return the relative entropy of a coin that shows heads with probability p to one that does
    with q.
    """
    pairs = ((p, q), (1 - p, 1 - q))
    return sum(a * math.log(a / b) if b > 0 else math.inf for a, b in pairs if a > 0)


def drift(lessons: Sequence[Lesson]) -> Drift:
    """Hold what the jobs of the last scripts were promised against what they needed; `lessons` ends
    with the latest.
    """
    promised = by_script(member for member in reversed(lessons) if member.promise is not None)[
        :LAST
    ]

    def mean(of: Callable[[Lesson], float]) -> float:
        if not promised:
            return 0.0
        return statistics.fmean(statistics.fmean(map(of, jobs)) for jobs in promised)

    enough = mean(lambda member: not member.censored and member.shortfall <= member.margin)
    return Drift(len(promised), enough, mean(lambda member: member.promise or 0.0))
