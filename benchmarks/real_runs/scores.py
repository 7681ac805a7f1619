"""How good were the estimates of real runs? Per source and metric, and row by row where they are
far off.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.error_plot import Point
from benchmarks.published_metrics import quantile
from benchmarks.real_runs import promise
from benchmarks.real_runs.runs import Result
from xmem_slurm.units import MIB

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], list[str]]
"""`text_table` or `markdown_table`."""

EXACT = 0.0005
"""Figures that are published in whole MiB or with three digits of a GiB are exact within this."""
FAR_OFF = 0.01
NOT_FOUND = "not found"

HEADINGS = (
    "source, metric",
    "rows",
    "no answer",
    "exact",
    "median %",
    "p90 %",
    "max %",
    "under",
    "required below",
)
HEADINGS += ("high", "medium")
FAR_HEADINGS = ("row", "real MiB", "estimate MiB", "error %", "confidence", "cause")


def by_metric(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Group results by source and metric."""

    def name(result: Result) -> str:
        return f"{result.source}: {result.metric}"

    return {title: list(of) for title, of in groupby(sorted(results, key=name), key=name)}


def cells(title: str, results: Sequence[Result]) -> list[str]:
    """Return one line of the table of `HEADINGS`: errors without their sign, counts of rows
    elsewhere.
    """
    known = [result for result in results if result.reason is None]
    errors = [abs(result.error) for result in known]
    levels = Counter(result.confidence for result in known)
    return [
        title,
        str(len(results)),
        str(len(results) - len(known)),
        str(sum(error <= EXACT for error in errors)),
        *(f"{100 * quantile(errors, share):.2f}" if errors else "" for share in (0.5, 0.9, 1)),
        str(sum(result.error < -EXACT for result in known)),
        str(sum(result.falls_short for result in known)),
        *(str(levels[level]) for level in ("high", "medium")),
    ]


def read_causes(path: Path) -> dict[str, str]:
    """Read why rows are far off, or have no estimate: by the row's key, or by what the keys of
    several begin with.
    """
    return dict(tomllib.loads(path.read_text(encoding="utf-8")))


def cause_of(key: str, causes: Mapping[str, str]) -> str:
    """Return why a row is far off, as far as that was found: what is said of the most like it."""
    fitting = [start for start in causes if key.startswith(start)]
    return causes[max(fitting, key=len)] if fitting else NOT_FOUND


def far_off(results: Iterable[Result], causes: Mapping[str, str]) -> list[list[str]]:
    """Return the lines of the table of `FAR_HEADINGS`, the furthest off first.

    Rows of one command that are off by one cause stand in one line, with the range of their
    figures.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in sorted(results, key=lambda result: -abs(result.error)):
        if result.reason is None and abs(result.error) > FAR_OFF:
            cause = cause_of(result.key, causes)
            command = result.key if cause == NOT_FOUND else " | ".join(result.key.split(" | ")[:3])
            groups.setdefault((command, cause), []).append(result)
    return [
        [
            (of[0].key if len(of) == 1 else f"{command} | {len(of)} rows").replace("|", ";"),
            _range(".2f", [result.ground_bytes / MIB for result in of]),
            _range(".2f", [result.estimated_bytes / MIB for result in of]),
            _range("+.2f", [100 * result.error for result in of]),
            ", ".join(dict.fromkeys(result.confidence for result in of)),
            cause,
        ]
        for (command, cause), of in groups.items()
    ]


def _range(form: str, figures: Sequence[float]) -> str:
    """Return the least and the most of some figures; of equal ones, that."""
    return " to ".join(
        dict.fromkeys(format(figure, form) for figure in (min(figures), max(figures)))
    )


def without_estimate(results: Iterable[Result], causes: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why rows of a source have no estimate: the first of them, and
    how many more.

    A cause that was found stands behind the reason.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.reason is not None:
            groups.setdefault((result.source, result.reason), []).append(result)
    more = {key: f" and {len(of) - 1} more" if len(of) > 1 else "" for key, of in groups.items()}
    why = {key: cause_of(of[0].key, causes) for key, of in groups.items()}
    found = {key: f". {cause}" if cause != NOT_FOUND else "" for key, cause in why.items()}
    return [f"- {of[0].key}{more[key]}: {key[1]}{found[key]}" for key, of in groups.items()]


def lines(results: Sequence[Result], causes: Mapping[str, str], table: Table) -> list[str]:
    """Return everything as text."""
    said = table(HEADINGS, [cells(*pair) for pair in by_metric(results).items()])
    high = [result for result in results if result.reason is None and result.confidence == "high"]
    low = sum(result.error < -FAR_OFF for result in high)
    said += ["", f"Of {len(high)} estimates of high confidence, {low} are more than 1 % too low."]
    said += ["", "With the margin of its kind on the estimate itself:", ""]
    said += table(promise.HEADINGS, promise.table(results))
    far = far_off(results, causes)
    if far:
        said += ["", "More than 1 % off:", "", *table(FAR_HEADINGS, far)]
    partings = dict.fromkeys(
        (_history(result), result.parting) for result in results if result.parting
    )
    if partings:
        said += ["", "Where the published history and the dry run's first part:", ""]
        said += [f"- {history}: {parting}" for history, parting in partings]
    without = without_estimate(results, causes)
    return said + (["", "No estimate:", "", *without] if without else [])


def _history(result: Result) -> str:
    """Return the source and the path of a row, which are the first words of its key."""
    return ", ".join(result.key.split(" | ")[:2])


def points(results: Iterable[Result]) -> list[Point]:
    """Return what the plot shows: the error of each row over its figure, by source."""
    known = [result for result in results if result.reason is None]
    return [
        Point(each.ground_bytes, each.error, each.source.rpartition("/")[2], each.key)
        for each in known
    ]
