"""How wide must the margin be so that the promise holds with a given probability?

Split conformal prediction: of n measured shortfalls that are exchangeable with the next one, the
next is at most the k-th smallest with probability k / (n + 1); so k = ceil((n + 1) * coverage).
Source: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World"; Lei et al., JASA 113
(2018).
"""

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple


def shortfall(ground_bytes: float, peak_bytes: float) -> float:
    """Return what the peak lacks of the ground, as a share of the peak: the least margin that would
    have done.
    """
    return ground_bytes / peak_bytes - 1


def margin(shortfalls: Sequence[float], coverage: float) -> float | None:
    """Return the share of the peak to add so that the next job is covered; None if there are too
    few to say so.

    Never below 0: an estimate is not lowered because others were too high.
    """
    rank = math.ceil((len(shortfalls) + 1) * coverage)
    if rank > len(shortfalls):
        return None
    return max(0.0, sorted(shortfalls)[rank - 1])


class Score(NamedTuple):
    """The shortfall of a job: `least`, or an unknown amount more where it is `censored`."""

    least: float
    censored: bool


def margin_of_groups(groups: Collection[Collection[Score]], coverage: float) -> tuple[float, float]:
    """Return the share of the peak that covers a job of a group like these, and with what
    probability: `coverage`, or as much as the groups support.

    Groups are exchangeable, and so are the jobs of one, but not jobs of different ones: of K groups
    each has the weight 1 / (K + 1), shared by its jobs, and the group to come the rest, at
    infinity. The share is the quantile of that: covered is one job of the next group with at least
    that probability, however many jobs a group has. Source: Lee, Barber, Willett,
    "Distribution-free inference with hierarchical data" (arXiv 2306.06342), HCP. A censored job is
    at infinity, too.

    Where more than 1 - `coverage` lies there, the share is the same quantile with censored jobs
    where they needed the least: a fixed level, so that it settles as jobs are added, and a job that
    runs out at more never lowers it. Promised is then the weight of those jobs that are known to
    have needed no more. With one job a group, the mean of that is above the next one's chance by at
    most c / (K + 1), where c is the censored share of the jobs up to the quantile: one of K + 1
    groups that is left out at random takes another's place among them at the most.
    """
    weighed = [(score, 1 / ((len(groups) + 1) * len(group))) for group in groups for score in group]
    share = _quantile(
        [(math.inf if score.censored else score.least, weight) for score, weight in weighed],
        coverage,
    )
    if share < math.inf:
        return max(0.0, share), coverage
    # Of too few groups no quantile is that high. The highest would be their worst job, which grows
    # with the number of jobs: it is the quantile of what there is instead.
    seen = len(groups) / (len(groups) + 1)
    level = coverage if coverage <= seen else coverage * seen
    share = max(0.0, _quantile([(score.least, weight) for score, weight in weighed], level))
    known = (weight for score, weight in weighed if not score.censored and score.least <= share)
    return share, math.fsum(known)


def _quantile(weighed: Iterable[tuple[float, float]], level: float) -> float:
    """Return the least value up to which there is more weight than `level`; infinity if none."""
    covered = 0.0
    for value, weight in sorted(weighed):
        covered += weight
        if covered > level - _ROUNDING:
            return value
    return math.inf


_ROUNDING = 1e-9
"""Of a sum of weights that comes to the coverage exactly."""


def left_out_coverage(
    shortfalls: Sequence[tuple[Hashable, float]], coverage: float
) -> float | None:
    """Check a margin against groups that it was not made from: each group in turn is held out.

    Runs of one model err alike, so they are not exchangeable with those of another. This is the
    share of runs that the margin of all *other* groups covers: what a job of a kind not measured
    may expect. None if a margin cannot be made.
    """
    covered = 0
    for group in {name for name, _ in shortfalls}:
        share = margin([value for name, value in shortfalls if name != group], coverage)
        if share is None:
            return None
        covered += sum(value <= share for name, value in shortfalls if name == group)
    return covered / len(shortfalls)
