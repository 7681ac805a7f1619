"""How wide must the margin be so that the promise holds with a given probability?

Split conformal prediction: of n measured shortfalls that are exchangeable with the next one, the
next is at most the k-th smallest with probability k / (n + 1); so k = ceil((n + 1) * coverage).
Source: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World"; Lei et al., JASA 113
(2018).
"""

import math
from collections.abc import Collection, Hashable, Sequence


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


def margin_of_groups(groups: Collection[Collection[float]], coverage: float) -> tuple[float, float]:
    """Return the share of the peak that covers a job of a group like these, and what share of jobs
    any could cover.

    Groups are exchangeable, and so are the jobs of one, but not jobs of different ones: of K groups
    each has the weight 1 / (K + 1), shared by its jobs, and the group to come the rest, at
    infinity. The share is the quantile of that: covered is one job of the next group with at least
    that probability, however many jobs a group has. It is infinite where more than 1 - `coverage`
    lies there; a job that needed nobody knows how much stands as math.inf, too. Source: Lee,
    Barber, Willett, "Distribution-free inference with hierarchical data" (arXiv 2306.06342), HCP.
    """
    weighed = sorted(
        (value, 1 / ((len(groups) + 1) * len(group))) for group in groups for value in group
    )
    finite = [(value, weight) for value, weight in weighed if value < math.inf]
    covered = 0.0
    for value, weight in finite:
        covered += weight
        if covered > coverage - _ROUNDING:
            return max(0.0, value), math.fsum(weight for _, weight in finite)
    return math.inf, math.fsum(weight for _, weight in finite)


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
