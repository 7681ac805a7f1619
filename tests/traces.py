"""Traces made up for tests, whose memory is known by arithmetic."""

import dataclasses
import random

from xmem_slurm.trace import Allocation, Category, Event, Mark, Op, Trace
from xmem_slurm.units import MIB, round_up

LAYERS = 4


def growing_batches(like: Trace, weights: int, largest: int, count: int = 40) -> tuple[Trace, int, int]:
    """Return a training run whose batches come shortest first, and two bounds of what its allocator needs (bytes).

    A step holds LAYERS activations of one size, each in a segment of its own; sizes are random, sorted, the last one
    `largest`. The least is what lives at once, the most that with each activation's segment rounded up: no earlier
    segment fits a larger activation, and all of them are whole and free where memory is short.
    """
    sizes = [*sorted(random.Random(0).sample(range(11 * MIB, largest), count - 1)), largest]
    allocations = [Allocation(weights, 0, Category.PARAM)]
    events = [Event(Op.ALLOC, 0)]
    marks = []
    for size in sizes:
        made = range(len(allocations), len(allocations) + LAYERS)
        allocations += [Allocation(size, 0, Category.ACT) for _ in made]
        events += [Event(Op.ALLOC, number) for number in made]
        events += [Event(op, number) for number in made for op in (Op.FREE_REQUESTED, Op.FREE_COMPLETED)]
        marks.append(Mark("step", len(allocations)))
    trace = dataclasses.replace(
        like, allocations=allocations, events=events, marks=marks, sites=(), made_at=(), recorded={}
    )
    return trace, weights + LAYERS * largest, weights + LAYERS * round_up(largest, 2 * MIB)
