"""How is a timeline drawn? As SVG paths over a grid of one unit a column across and HEIGHT units
from 0 to `top_bytes`.

The paths are stairs: whole numbers, one level for each column, and nothing where the level stays.
They are painted one over the other, so each reaches down to the ground. A page scales the grid to
any width, and zooms by showing fewer columns of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from xmem_slurm.report.options import OptionOutlook
from xmem_slurm.report.timeline import STACK, Moment, Timeline
from xmem_slurm.trace import Category

HEIGHT = 1000
"""Units from no memory to the top of the chart."""

ABOVE = 1.1
"""The top of the chart, as a multiple of the highest thing drawn in it."""

NEAR = 1.6
"""Capacity lines up to this multiple of the peak are drawn; those further up would flatten the
chart."""

_TICKS = 6
"""About so many lines with a number."""


@dataclass(frozen=True, slots=True)
class Line:
    """A level across the chart: `y` in units from the top."""

    label: str
    size_bytes: int
    y: int


@dataclass(frozen=True, slots=True)
class Band:
    """A phase across the chart: from column `x`, `width` columns (fractions of them)."""

    name: str
    label: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Failing:
    """Where options fail that are not large enough: at column `x`, all of them at the same
    request.
    """

    names: str
    x: float


@dataclass(frozen=True, slots=True)
class Chart:
    """All that a page needs to draw one rank. `areas` goes from the topmost category to the lowest,
    as they are drawn.

    `steps` are the columns at which optimizer steps ended, with the step's number; `checkpoints`
    those at which one was saved.
    """

    columns: int
    top_bytes: int
    areas: Sequence[tuple[Category, str]]
    reserved: str
    capacities: Sequence[Line]
    beyond: Sequence[OptionOutlook]
    ticks: Sequence[Line]
    bands: Sequence[Band]
    steps: Sequence[tuple[int, float]]
    checkpoints: Sequence[float]
    failing: Sequence[Failing]


def chart(
    timeline: Timeline,
    options: Sequence[OptionOutlook],
    rank: int = 0,
    needed_bytes: int = 0,
) -> Chart:
    """Lay out a timeline, with a line where the memory that each option leaves to torch's allocator
    ends.

    Options that fail do so in the run of one rank. There is room for a line of `needed_bytes`,
    which may be more than was reserved.
    """
    peak = timeline.peak_reserved_bytes
    near = [option for option in options if 0 < option.allocator_bytes <= NEAR * peak]
    top = int(ABOVE * max([peak, needed_bytes, *(option.allocator_bytes for option in near)]))
    per_event = len(timeline.columns) / timeline.events
    levels = [tuple(accumulate(moment.allocated)) for moment in timeline.columns]
    return Chart(
        columns=len(timeline.columns),
        top_bytes=top,
        areas=[
            (category, f"{_stairs([level[index] for level in levels], top)}V{HEIGHT}H0Z")
            for index, category in reversed(list(enumerate(STACK)))
            if any(moment.allocated[index] for moment in timeline.columns)
        ],
        reserved=_stairs([moment.reserved_bytes for moment in timeline.columns], top),
        capacities=[
            Line(option.name, option.allocator_bytes, _y(option.allocator_bytes, top))
            for option in near
        ],
        beyond=[option for option in options if option.allocator_bytes > NEAR * peak],
        ticks=_ticks(top),
        bands=[
            Band(
                phase.name,
                str(phase),
                round(phase.start * per_event, 2),
                round((phase.end - phase.start) * per_event, 2),
            )
            for phase in timeline.phases
        ],
        steps=[
            (number, round(event * per_event, 2)) for number, event in enumerate(timeline.steps, 1)
        ],
        checkpoints=[round(event * per_event, 2) for event in timeline.checkpoints],
        failing=[
            Failing(names, round(event * per_event, 2)) for event, names in _failures(options, rank)
        ],
    )


def level(chart: Chart, size_bytes: int, label: str) -> Line:
    """Return a line across a chart at so many bytes of the allocator."""
    return Line(label, size_bytes, max(0, _y(size_bytes, chart.top_bytes)))


def _failures(options: Sequence[OptionOutlook], rank: int) -> Iterator[tuple[int, str]]:
    """Yield the events at which options fail in a rank's run, in order, and which."""
    at: dict[int, list[str]] = {}
    for option in options:
        if option.failure is not None and option.failure.rank == rank:
            at.setdefault(option.failure.event, []).append(option.name)
    for event, names in sorted(at.items()):
        yield event, ", ".join(names)


def _y(size: int, top: int) -> int:
    return HEIGHT - round(HEIGHT * size / top)


def _stairs(sizes: Sequence[int], top: int) -> str:
    level = _y(sizes[0], top)
    path = [f"M0,{level}"]
    for column, size in enumerate(sizes):
        y = _y(size, top)
        if y != level:
            path.append(f"H{column}V{y}")
            level = y
    return "".join([*path, f"H{len(sizes)}"])


def _ticks(top: int) -> list[Line]:
    """Return round numbers of bytes: 1, 2 or 5 times a power of ten of the unit in which the top is
    written.
    """
    unit, name = next(
        (u, n)
        for u, n in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
        if top >= u
    )
    rough = top / unit / _TICKS
    power = 10.0 ** (len(str(int(rough))) - 1 if rough >= 1 else -1)
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    count = int(top / unit / step)
    return [
        Line(f"{n * step:g} {name}", int(n * step * unit), _y(int(n * step * unit), top))
        for n in range(count + 1)
    ]


def hover_columns(moments: Sequence[Moment]) -> list[list[int]]:
    """Return what a page says of each column: its event, the bytes reserved, then those of each of
    STACK.
    """
    return [[moment.event, moment.reserved_bytes, *moment.allocated] for moment in moments]
