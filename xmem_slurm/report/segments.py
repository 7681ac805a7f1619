"""How full are torch's segments when it holds the most? A map of them: what fragmentation costs,
and where it sits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from xmem_slurm.allocator.replay import Run
from xmem_slurm.allocator.snapshot import segments
from xmem_slurm.trace import Category, Trace

ROWS = 12
"""Rows of the map, each of as many bytes."""
CELLS = 1000
"""Cells of a row; each shows what is in its middle."""
MOST_SEGMENTS = 12
"""Segments in the table, the largest."""

FREE = "free"
"""What a cell holds in which nothing is allocated."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch that torch got from the driver; `largest_free_bytes` is the most that still has
    room in it at once.
    """

    total_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    blocks: int

    @property
    def free_bytes(self) -> int:
        """What is in it and in no use."""
        return self.total_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """All segments, the largest first, after event `event`.

    `areas` are SVG paths over ROWS rows of CELLS units, one for each category and one for what is
    `FREE`; `edges` is the path of lines between segments. `whole_free_bytes` are in segments that
    are free as a whole, which torch gives back where memory is short; what else is free is stuck
    between blocks that are in use.
    """

    event: int
    segments: Sequence[Segment]
    areas: Sequence[tuple[str, str]]
    edges: str

    @property
    def reserved_bytes(self) -> int:
        """All of them together."""
        return sum(segment.total_bytes for segment in self.segments)

    @property
    def free_bytes(self) -> int:
        """What is in them and in no use."""
        return sum(segment.free_bytes for segment in self.segments)

    @property
    def whole_free_bytes(self) -> int:
        """What of that could go back to the driver at once."""
        return sum(segment.total_bytes for segment in self.segments if not segment.allocated_bytes)


def segment_map(trace: Trace, event: int) -> SegmentMap:
    """Replay a trace up to and with an event, without a limit, and look at the allocator.

    Raises:
        UsageError: as `replay` does.
    """
    run = Run(trace)
    run.to_event(event)
    # of several the last has it
    live = {block: number for number, block in run.blocks.items() if block.allocated}
    category = {
        block.ptr: trace.allocations[number].category.value for block, number in live.items()
    }
    torch_segments = segments(run.allocator, live)
    torch_segments.sort(key=lambda segment: segment["total_size"], reverse=True)
    spans: list[tuple[int, str]] = []
    ends: list[int] = []
    for segment in torch_segments:
        spans += [
            (block["size"], category.get(block["address"], FREE)) for block in segment["blocks"]
        ]
        ends.append(segment["total_size"] + (ends[-1] if ends else 0))
    total = ends[-1] if ends else 0
    return SegmentMap(
        event,
        [_segment(segment["blocks"]) for segment in torch_segments],
        _areas(spans, total),
        _edges(ends, total),
    )


def _segment(blocks: Sequence[dict[str, Any]]) -> Segment:
    free = [block["size"] for block in blocks if block["state"] == "inactive"]
    total = sum(block["size"] for block in blocks)
    return Segment(total, total - sum(free), max(free, default=0), len(blocks) - len(free))


def _areas(spans: Sequence[tuple[int, str]], total: int) -> list[tuple[str, str]]:
    """Return one path for each kind of what lies in a row of spans of bytes, broken into ROWS
    rows.
    """
    paths: dict[str, list[str]] = {}
    cells = enumerate(_cells(spans, total))
    for (row, kind), run in groupby(cells, key=lambda cell: (cell[0] // CELLS, cell[1])):
        places = [cell % CELLS for cell, _ in run]
        paths.setdefault(kind, []).append(f"M{places[0]},{row}h{len(places)}v1h-{len(places)}z")
    names = [*(category.value for category in Category), FREE]
    return [(name, "".join(paths[name])) for name in names if name in paths]


def _cells(spans: Sequence[tuple[int, str]], total: int) -> Iterator[str]:
    """Yield what lies in the middle of each cell."""
    end, place = 0, -1
    for cell in range(ROWS * CELLS if total else 0):
        middle = total * (2 * cell + 1) // (2 * ROWS * CELLS)
        while middle >= end:
            place += 1
            end += spans[place][0]
        yield spans[place][1]


def _edges(ends: Sequence[int], total: int) -> str:
    """Return the path of a line across its row at each segment's end, where two are not drawn over
    each other.
    """
    cells = sorted({ROWS * CELLS * end // total for end in ends[:-1]})
    return "".join(f"M{cell % CELLS},{cell // CELLS}v1" for cell in cells)
