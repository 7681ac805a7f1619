"""Did the margins hold on these runs, as they are stated? Below ground how often, and how much too
much is asked for.

Of the estimate itself, with the margin that the product takes for what was unseen
(xmem_slurm/sizing/margins.py), a share of it. A margin from measured runs states a probability, a
prior none.
"""

import math
from collections.abc import Iterable, Sequence

from benchmarks.published_metrics import quantile
from benchmarks.real_runs.runs import Result
from xmem_slurm.doubts import Doubt
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import margin_of
from xmem_slurm.sizing.margins import Margin

HEADINGS = (
    "source, margin",
    "rows",
    "below ground",
    "share %",
    "95 % interval",
    "stated at most %",
)
HEADINGS += ("median excess %",)
_NORMAL = 1.959964
"""The quantile of the normal distribution that leaves out 2.5 % at each end."""


def margin(result: Result) -> Margin:
    """Return the margin that the product takes for such a run."""
    return margin_of(map(Doubt.of, result.doubts), load_catalogue()[result.gpu].capability)


def table(results: Iterable[Result]) -> list[list[str]]:
    """Return the lines of the table of `HEADINGS`: one for each source and kind of margin, and for
    all.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.reason is None:
            stated = "measured" if margin(result).probability is not None else "prior"
            for name in (f"all, {stated}", f"{result.source}, {stated}"):
                groups.setdefault(name, []).append(result)
    return [
        _cells(name, groups[name])
        for name in sorted(groups, key=lambda name: (name.startswith("all, "), name))
    ]


def _cells(name: str, results: Sequence[Result]) -> list[str]:
    margins = [margin(result) for result in results]
    excess = [
        result.estimated_bytes * (1 + margin.share) / result.ground_bytes - 1
        for result, margin in zip(results, margins, strict=True)
    ]
    below = sum(each < 0 for each in excess)
    stated = [margin.probability for margin in margins if margin.probability is not None]
    low, high = interval(below, len(excess))
    return [
        name,
        str(len(excess)),
        str(below),
        f"{100 * below / len(excess):.1f}",
        f"{100 * low:.1f} to {100 * high:.1f}",
        f"{100 * (1 - min(stated)):.0f}" if stated else "",
        f"{100 * quantile(excess, 0.5):.1f}",
    ]


def interval(found: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (JASA 22, 1927), of rows as if they erred one by
    one.
    """
    share, square = found / of, _NORMAL**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = _NORMAL * math.sqrt(share * (1 - share) / of + square / (4 * of**2)) / (1 + square / of)
    return max(0.0, middle - half), min(1.0, middle + half)
