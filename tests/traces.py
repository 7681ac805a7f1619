"""Traces made up for tests, whose memory is known by arithmetic."""

import dataclasses
import random

from xmem_slurm.trace import Allocation, Category, Event, Mark, Op, ShownGpu, Trace
from xmem_slurm.units import GIB, MIB, round_up

LAYERS = 4


def trace_of(script: str, settings: str = "") -> Trace:
    """Write a trace as words: +NAME:MIB[:CATEGORY], -NAME (freed), ~NAME (free asked for), .NAME
    (free done), e."""
    allocations: list[Allocation] = []
    events: list[Event] = []
    numbers: dict[str, int] = {}
    for word in script.split():
        name = word[1:].split(":")[0]
        if word == "e":
            events.append(Event(Op.EMPTY_CACHE, -1))
        elif word[0] == "+":
            _, size, *category = word[1:].split(":")
            numbers[name] = len(allocations)
            allocations.append(
                Allocation(int(float(size) * MIB), 0, Category(*category or ["ACT"]))
            )
            events.append(Event(Op.ALLOC, numbers[name]))
        else:
            steps = {
                "~": [Op.FREE_REQUESTED],
                ".": [Op.FREE_COMPLETED],
                "-": [Op.FREE_REQUESTED, Op.FREE_COMPLETED],
            }
            events += [Event(op, numbers[name]) for op in steps[word[0]]]
    return Trace(
        argv=[],
        rank=0,
        world_size=1,
        component=0,
        nodes=1,
        state="exit",
        failure=None,
        torch_version="2.11.0",
        cuda_version=None,
        allocator_settings=settings,
        gpu=ShownGpu("", "9.0", 132, 80 * GIB),
        allocations=allocations,
        events=events,
        marks=[],
        doubts=[],
        recorded={},
    )


def growing_batches(
    like: Trace, weights: int, largest: int, count: int = 40
) -> tuple[Trace, int, int]:
    """Return a training run whose batches come shortest first, and two bounds of what its allocator
    needs (bytes).

    A step holds LAYERS activations of one size, each in a segment of its own; sizes are random,
    sorted, the last one `largest`. The least is what lives at once, the most that with each
    activation's segment rounded up: no earlier segment fits a larger activation, and all of them
    are whole and free where memory is short."""
    sizes = [*sorted(random.Random(0).sample(range(11 * MIB, largest), count - 1)), largest]
    allocations = [Allocation(weights, 0, Category.PARAM)]
    events = [Event(Op.ALLOC, 0)]
    marks = []
    for size in sizes:
        made = range(len(allocations), len(allocations) + LAYERS)
        allocations += [Allocation(size, 0, Category.ACT) for _ in made]
        events += [Event(Op.ALLOC, number) for number in made]
        events += [
            Event(op, number) for number in made for op in (Op.FREE_REQUESTED, Op.FREE_COMPLETED)
        ]
        marks.append(Mark("step", len(allocations)))
    trace = dataclasses.replace(
        like, allocations=allocations, events=events, marks=marks, sites=(), made_at=(), recorded={}
    )
    return trace, weights + LAYERS * largest, weights + LAYERS * round_up(largest, 2 * MIB)
