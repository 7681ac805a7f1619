"""How wide must margins be here, by what jobs really used? Split conformal prediction, by kind of run.

A job's shortfall is what its peak of reserved bytes was above the predicted one, as a share of that. A job that ran out
of GPU memory needed more than there was, nobody knows how much: it is censored from below, counts among the others, and
is never one that a margin is said to cover. One script of one user has one vote, its worst: its jobs are alike, and a
sweep of a thousand is one piece of evidence. Where so few are left that nothing can be promised, what ships holds.

Known limitations: jobs that were sent to a GPU by an estimate are not those that no estimate has picked (a site can
leave a share of them as they were written); a job that failed before its peak says nothing.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.sizing import conformal
from xmem_slurm.sizing.margins import LearnedMargin, Margin
from xmem_slurm.units import MIB

LEAST_SCRIPTS = 20
"""Fewer than these, by user and script, teach nothing: with 19 the promise of 95 % is the worst of all seen."""
COVERAGE = 0.95
LAST = 100
"""By how many jobs it is told whether the promise holds still..."""
SURPRISE = 0.05
"""...and how unlikely so many that were above it must be."""


@dataclass(frozen=True)
class Lesson:
    """What one job says: its shortfall, at least that much where it is `censored`; whose, and of what kind it was."""

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
    elif any(each.retries for process in outcome.processes for each in process.devices):
        # It freed its cache to go on: what it held is what there was, and surely enough.
        shortfall = device.reserved / predicted.fits_in_bytes - 1
    else:
        shortfall = device.reserved / predicted.reserved_bytes - 1
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


def lessons(found: Iterable[JobOutcome], failed: Collection[str] = ()) -> tuple[list[Lesson], Counter[str]]:
    """Return what jobs say, and how often they say nothing, for which reason; `failed` did by Slurm's accounting."""
    said: list[Lesson] = []
    nothing = Counter[str]()
    for outcome in found:
        each = lesson(outcome, completed=all(process.job not in failed for process in outcome.processes))
        if isinstance(each, str):
            nothing[each] += 1
        else:
            said.append(each)
    return said, nothing


def votes(members: Iterable[Lesson]) -> list[Lesson]:
    """Return one of each script and user: the one that needed the most, where one ran out one that did."""
    worst = dict[tuple[int, str], Lesson]()
    for each in members:
        before = worst.get((each.user, each.script))
        if before is None or (before.censored, before.shortfall) < (each.censored, each.shortfall):
            worst[each.user, each.script] = each
    return list(worst.values())


def margin(members: Sequence[Lesson], coverage: float = COVERAGE) -> Margin | None:
    """Return the margin of jobs that are alike; None where there are too few of them.

    Of n votes the k-th smallest, k = ceil((n + 1) x coverage), those that ran out behind all others. Where that is one
    of these, the promise is as much as the others support, and no less is added than what was too little.
    """
    voted = votes(members)
    if len(voted) < LEAST_SCRIPTS:
        return None
    share: float | None = conformal.margin([math.inf if each.censored else each.shortfall for each in voted], coverage)
    promise, seen = coverage, sum(not each.censored for each in voted)
    if share == math.inf and seen:
        share, promise = max(each.shortfall for each in voted), math.floor(100 * seen / (len(voted) + 1)) / 100
    if share is None or share == math.inf:
        return None
    return Margin(math.ceil(max(0.0, share) * 1e4) / 1e4, promise, len(members), len(voted))


def learn(said: Sequence[Lesson], coverage: float = COVERAGE) -> list[LearnedMargin]:
    """Return the margin of each engine, GPU and class of doubt that has enough votes, and of all its GPUs together."""
    classes = dict[tuple[str, frozenset[str]], list[Lesson]]()
    for each in said:
        classes.setdefault((each.engine, each.unseen), []).append(each)
    found = []
    for (engine, unseen), members in sorted(classes.items(), key=lambda item: (item[0][0], sorted(item[0][1]))):
        every = frozenset(each.gpu for each in members)
        for gpus in dict.fromkeys([*(frozenset({gpu}) for gpu in sorted(every)), every]):
            of_kind = margin([each for each in members if each.gpu in gpus], coverage)
            if of_kind is not None:
                found.append(LearnedMargin(engine, gpus, unseen, of_kind))
    return found


@dataclass(frozen=True)
class Drift:
    """How often the margins of the last scripts with a promise were enough, against what they promised on average."""

    scripts: int
    enough: int
    promised: float

    @property
    def is_one(self) -> bool:
        """Whether so many shortfalls are a surprise: by the binomial distribution, rarer than `SURPRISE`."""
        chance = sum(
            math.comb(self.scripts, k) * self.promised**k * (1 - self.promised) ** (self.scripts - k)
            for k in range(self.enough + 1)
        )
        return self.scripts > 0 and chance < SURPRISE


def drift(said: Sequence[Lesson]) -> Drift:
    """Hold the promises that the last jobs were given against what they needed, a script once; `said` ends with now."""
    last = votes([each for each in said if each.promise is not None][-LAST:])
    enough = sum(not each.censored and each.shortfall <= each.margin for each in last)
    return Drift(len(last), enough, sum(each.promise or 0 for each in last) / max(1, len(last)))
