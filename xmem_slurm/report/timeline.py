"""How does memory go up and down over a run?

One more replay of a trace, watched all the way and cut into columns: each column keeps its highest
moment, so that the peak of the columns is the peak of the run, to the byte. Time is counted in
events (allocations and frees): a dry run's seconds say nothing about those on a GPU.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from xmem_slurm.allocator.caching_allocator import TraceEntry
from xmem_slurm.allocator.replay import Run
from xmem_slurm.trace import Category, Mark, Op, Trace

STACK = (
    Category.PARAM,
    Category.BUFFER,
    Category.OPT,
    Category.GRAD,
    Category.ACT,
    Category.TEMP,
    Category.OTH,
)
"""The categories from the bottom of a chart to its top: what lives longest first."""

_INDEX = {category: index for index, category in enumerate(STACK)}

_ENDED_BY = {"backward": "forward", "backward_end": "backward", "step": "optimizer"}
_ENDED_BY |= {"evaluation": "forward", "training": "evaluation"}
"""What a mark of the trace ends; a checkpoint is a moment and ends nothing."""

_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Whether an entry of the history adds to the reserved bytes or takes away."""


class Moment(NamedTuple):
    """After event number `event` (its place in `Trace.events`): bytes allocated, for each of STACK
    and in all.
    """

    event: int
    allocated: tuple[int, ...]
    allocated_bytes: int
    reserved_bytes: int


class StepPart(NamedTuple):
    """A part of a training step: `forward`, `backward` or `optimizer`; or `evaluation`; `after`
    follows the last one.

    It lasts from event `start` to before event `end`; `highest` is the moment in it when the most
    was allocated.
    """

    name: str
    step: int
    start: int
    end: int
    highest: Moment

    def __str__(self) -> str:
        return _in_words(self.name, self.step)


def _in_words(name: str, step: int) -> str:
    if name == "evaluation":
        return f"evaluation after step {step - 1}"
    return f"{name}, step {step}" if name != "after" else "after the last step seen"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run in columns of equal numbers of events.

    `peak` is when the most was allocated, `fullest` when the most was reserved (and of that the
    most allocated). `steps` says before which event each optimizer step had ended, `checkpoints`
    the same of each that was saved.
    """

    events: int
    columns: Sequence[Moment]
    phases: Sequence[StepPart]
    steps: Sequence[int]
    checkpoints: Sequence[int]
    peak: Moment
    fullest: Moment
    block_sizes: Sequence[int]
    """Bytes of the block that each allocation of the trace got."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved."""
        return self.fullest.reserved_bytes


def timeline(trace: Trace, columns: int) -> Timeline:
    """Replay a trace that has events, without a limit, and return it in at most `columns` columns.

    Raises:
        UsageError: as `replay` does.
    """
    run = Run(trace)
    history: list[TraceEntry] = []
    run.allocator.history = history
    run.to_event(None)
    moments = list(_moments(trace, run.block_sizes, history))
    count = len(moments)
    edges = sorted({count * column // columns for column in range(columns + 1)})
    phases = [
        StepPart(name, step, start, end, _highest(moments[start:end]))
        for name, step, start, end in _spans(trace)
    ]
    return Timeline(
        events=count,
        columns=[_column(moments[start:end]) for start, end in pairwise(edges)],
        phases=phases,
        steps=[event for mark, event in _marks(trace) if mark.kind == "step"],
        checkpoints=[event for mark, event in _marks(trace) if mark.kind == "checkpoint"],
        peak=_highest(moments),
        fullest=max(moments, key=attrgetter("reserved_bytes", "allocated_bytes")),
        block_sizes=run.block_sizes,
    )


def phase_of(trace: Trace, allocation: int) -> str:
    """Say in which phase of which step an allocation was made."""
    marks = [mark for mark in trace.marks if mark.kind in _ENDED_BY]
    index = bisect_right(marks, allocation, key=lambda mark: mark.allocations)
    step = 1 + sum(mark.kind == "step" for mark in marks[:index])
    return _in_words(_ENDED_BY[marks[index].kind] if index < len(marks) else _last(marks), step)


def _last(marks: Sequence[Mark]) -> str:
    return "evaluation" if marks and marks[-1].kind == "evaluation" else "after"


def _moments(
    trace: Trace, block_sizes: Sequence[int], history: Sequence[TraceEntry]
) -> Iterator[Moment]:
    """Yield the moment after each event; `history` tells when segments came and went between the
    allocations.
    """
    allocated, total, reserved = [0] * len(STACK), 0, 0
    entries = iter(history)
    for event, (op, number) in enumerate(trace.events):
        if op == Op.ALLOC:
            for entry in entries:
                if entry.action == "alloc":
                    break
                reserved += _RESERVES.get(entry.action, 0) * entry.size
            change = block_sizes[number]
        elif op == Op.FREE_REQUESTED:
            change = -block_sizes[number]
        else:
            change = 0
        if change:
            allocated[_INDEX[trace.allocations[number].category]] += change
            total += change
        yield Moment(event, tuple(allocated), total, reserved)


def _highest(moments: Sequence[Moment]) -> Moment:
    return max(moments, key=attrgetter("allocated_bytes"))


def _column(moments: Sequence[Moment]) -> Moment:
    return _highest(moments)._replace(
        reserved_bytes=max(moment.reserved_bytes for moment in moments)
    )


def _marks(trace: Trace) -> Iterator[tuple[Mark, int]]:
    """Yield each mark, and the event that comes after it; the last allocations of a trace that was
    cut may be gone.
    """
    made_by = [0, *(event + 1 for event, (op, _) in enumerate(trace.events) if op == Op.ALLOC)]
    for mark in trace.marks:
        yield mark, made_by[min(mark.allocations, len(made_by) - 1)]


def _spans(trace: Trace) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, step, start, end) of the phases that have events, in events; the last one ends
    with the trace.
    """
    start, step = 0, 1
    marks = [(mark, end) for mark, end in _marks(trace) if mark.kind in _ENDED_BY]
    for mark, end in marks:
        if end > start:
            yield _ENDED_BY[mark.kind], step, start, end
            start = end
        step += mark.kind == "step"
    if start < len(trace.events):
        yield _last([mark for mark, _ in marks]), step, start, len(trace.events)
