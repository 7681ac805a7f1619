"""How good is an estimate? The metrics of the published runs, as their authors compute them, and
those they left out.

    error   (estimated - ground) / ground
    C1      the estimate foresees an OOM exactly where there was one
    C2      C1, and the job lives when it is run again with the estimate as its memory limit (or
            rightly foreseen OOM)
    PEF     the share of runs without C2: the probability of a failed estimate
    saved   total - estimated with C2 and without OOM; total for an OOM that was foreseen; else 0
    MCP     (sum of saved where C1, less sum of total where not C1) / N: memory conservation

A second run capped at an estimate of ours needs a GPU. Where the data do not settle how it would
end, PEF and MCP are given as the best and the worst that they can be. Source: `plot/` of
Stone-ResearchLife/xMem, arXiv 2510.21048.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Judged:
    """One tool on one run. Sizes in bytes; `capped_oom`: whether it died when capped at the
    estimate, if known.
    """

    ground_bytes: int
    total_bytes: int
    real_oom: bool
    estimated_bytes: float
    predicted_oom: bool
    capped_oom: bool | None
    seconds: float | None

    @property
    def error(self) -> float:
        """The signed relative error; it has a meaning only where the run did not end in OOM."""
        return (self.estimated_bytes - self.ground_bytes) / self.ground_bytes

    @property
    def foresaw(self) -> bool:
        """C1."""
        return self.predicted_oom == self.real_oom

    def succeeded(self, unknown_lives: bool) -> bool:
        """C2, taking `unknown_lives` for a capped run that nobody made."""
        if not self.foresaw:
            return False
        if self.real_oom:
            return True
        return unknown_lives if self.capped_oom is None else not self.capped_oom

    def saved_bytes(self, unknown_lives: bool) -> float:
        """What of the GPU the estimate leaves to others; negative is what a wrong verdict costs."""
        if not self.foresaw:
            return -self.total_bytes
        if self.real_oom:
            return self.total_bytes
        return self.total_bytes - self.estimated_bytes if self.succeeded(unknown_lives) else 0.0


@dataclass(frozen=True)
class Scores:
    """One tool on many runs. Errors are shares of the ground, over the `runs` without OOM; `judged`
    counts all runs.
    """

    judged: int
    runs: int
    median: float
    mean: float
    p90: float
    maximum: float
    signed_median: float
    under: float
    under_5_percent: float
    verdicts_right: float
    """Share of C1."""
    pef_best: float
    pef_worst: float
    mcp_best_bytes: float
    mcp_worst_bytes: float
    seconds: float | None
    """Median, over the runs that have one."""


def score(judged: Sequence[Judged]) -> Scores | None:
    """Score one tool on the runs that it was asked about; None where no run without OOM is among
    them.
    """
    errors = [each.error for each in judged if not each.real_oom]
    if not errors:
        return None
    absolute = [abs(error) for error in errors]
    seconds = [each.seconds for each in judged if each.seconds is not None]
    return Scores(
        judged=len(judged),
        runs=len(errors),
        median=statistics.median(absolute),
        mean=statistics.fmean(absolute),
        p90=quantile(absolute, 0.9),
        maximum=max(absolute),
        signed_median=statistics.median(errors),
        under=share([error < 0 for error in errors]),
        under_5_percent=share([error < -0.05 for error in errors]),
        verdicts_right=share([each.foresaw for each in judged]),
        pef_best=share([not each.succeeded(True) for each in judged]),
        pef_worst=share([not each.succeeded(False) for each in judged]),
        mcp_best_bytes=statistics.fmean(each.saved_bytes(True) for each in judged),
        mcp_worst_bytes=statistics.fmean(each.saved_bytes(False) for each in judged),
        seconds=statistics.median(seconds) if seconds else None,
    )


def quantile(values: Sequence[float], share_below: float) -> float:
    """Return the quantile by linear interpolation between the two values next to it (numpy's
    default).
    """
    ordered = sorted(values)
    place = share_below * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def share(truths: Sequence[bool]) -> float:
    """Return which part of `truths` is true."""
    return sum(truths) / len(truths)
