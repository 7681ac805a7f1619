"""What would this trace have needed? Replay it through the allocator model, on as much memory as
one likes.

Enough is what the job runs well on. One that is short of memory frees its cache and tries again,
which costs it time: nothing to speak of where that happens once in a while, 10 to 60 % where every
step does it. So a step that asks for the same sizes as an earlier one must find them in the cache,
all but one in TOLERATED of such steps; where batches differ in shape, steps ask for what none did
before, and being short there is how fragments are given back.

A recorded free is replayed as torch did it: FREE_REQUESTED directly followed by its FREE_COMPLETED
is an ordinary free; if other events stand between, other streams used the block (record_stream),
and it stays active_pending_free until its FREE_COMPLETED, unless the model's own out-of-memory path
or an EMPTY_CACHE synchronises before.

Note [Steps that are left out]: a trace says how many steps like one that it has are left out behind
that. They are made here from that one: what it frees of earlier steps stands for what it leaves
itself. So the cache is that of the job, and whether it lives on freeing its cache does not hang on
how many equal steps were kept. Once they find their blocks where an earlier one of them did, the
rest of them does, too.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
from xmem_slurm.allocator.config import Settings, parse
from xmem_slurm.allocator.device import Device
from xmem_slurm.allocator.events import complete
from xmem_slurm.trace import Category, Event, Op, Repeat, Trace

if TYPE_CHECKING:
    from xmem_slurm.allocator.blocks import Block

_OTHER_STREAM = -1
"""Stands for every stream that record_stream named: a trace says when the use ended, not where it
was."""


TOLERATED = 10
"""Of so many steps that repeat an earlier one, one may be short of memory: if that costs it 60 %,
all lose 6 %."""
MOST_REPEATS = 64
"""So many of the steps that are left out are made one after another, before the rest is taken to be
like them."""


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """A point of the replay: after `event` (its place in `Trace.events`), these bytes were
    allocated, by category.
    """

    event: int
    allocated_bytes: dict[Category, int]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The request that failed, its bytes as asked for, and the bytes allocated at that moment, by
    category.
    """

    allocation: int
    event: int
    requested_bytes: int
    allocated_bytes: dict[Category, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay saw. The peaks are those of torch.cuda.memory_stats(), in bytes, up to the end
    or the failure.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_active_bytes: int
    peak_requested_bytes: int
    peak_inactive_split_bytes: int
    segments: int
    """The most segments held at once (expandable segments are not counted, as in torch)."""
    retries: int
    """How often the allocator freed its cache because memory was short (num_alloc_retries)."""
    at_peak_allocated: UsagePoint
    oom: OutOfMemory | None
    repeated_steps: int
    """Steps that ask for the same sizes as an earlier one, those included that the trace leaves
    out."""
    short_steps: int
    """Those of them that were short of memory, whether freeing cached blocks helped or not."""

    @property
    def fits(self) -> bool:
        """Whether every request was served."""
        return self.oom is None

    @property
    def suffices(self) -> bool:
        """Whether every request was served and the job does not live on freeing its cache: see the
        module's top.
        """
        return self.fits and TOLERATED * self.short_steps <= self.repeated_steps


def replay(
    trace: Trace,
    capacity: int | None = None,
    settings: Settings | None = None,
    total: int | None = None,
    *,
    at_most: bool = False,
) -> Replay:
    """Replay a trace on `capacity` bytes (None: no limit) and stop at the first request that cannot
    be served.

    Args:
        trace: what one process did; every FREE names an allocation that came before it.
        capacity: bytes that the allocator may take from the GPU: its memory less what lives outside
        the allocator.
        settings: the allocator's; by default those of the recorded job.
        total: all the memory that the GPU says it has, in bytes, of which memory fractions are
        taken; by default
            `capacity`.
        at_most: whether requests are as large as they may be (`Trace.bounds`), but where there is
            no memory for that: torch then takes cuDNN's next plan (`try_plans`,
            aten/src/ATen/native/cudnn/Conv_v8.cpp, 2.4 to 2.15).

    Raises:
        UsageError: the trace's allocator settings are not ones that its torch accepts.
    """
    run = Run(trace, capacity, settings, total)
    run.bounds = trace.bounds if at_most else {}
    failed = run.to_event(None)
    allocator = run.allocator
    oom = None
    if failed is not None:
        moment = run.moment(allocator.allocations + 1)
        oom = OutOfMemory(
            failed, moment.event, trace.allocations[failed].size, moment.allocated_bytes
        )
    ends = _step_ends(trace)
    repeated = _repeated(trace, ends)
    return Replay(
        peak_allocated_bytes=allocator.allocated_bytes_peak,
        peak_reserved_bytes=allocator.reserved_bytes_peak,
        peak_active_bytes=allocator.active_bytes_peak,
        peak_requested_bytes=allocator.requested_bytes_peak,
        peak_inactive_split_bytes=allocator.inactive_split_bytes_peak,
        segments=allocator.segments_peak,
        retries=allocator.num_alloc_retries,
        at_peak_allocated=run.moment(allocator.allocated_peak_at),
        oom=oom,
        repeated_steps=len(repeated) + run.repeated,
        short_steps=len(repeated & {bisect_right(ends, number) for number in allocator.short_at})
        + run.repeated_short,
    )


def _step_ends(trace: Trace) -> list[int]:
    """Return how many allocations had been made at the end of each step; without an optimizer, as
    each backward began.

    A script that has neither is all one step, which repeats nothing.
    """
    kind = "step" if trace.steps else "backward"
    return [mark.allocations for mark in trace.marks if mark.kind == kind]


def _repeated(trace: Trace, ends: Sequence[int]) -> set[int]:
    """Return which steps ask for the same sizes as an earlier one, in the same order."""
    step_sizes: set[int] = set()
    repeated: set[int] = set()
    for step, (start, end) in enumerate(pairwise([0, *ends, len(trace.allocations)])):
        sizes = hash(tuple([allocation.size for allocation in trace.allocations[start:end]]))
        if end > start and sizes in step_sizes:
            repeated.add(step)
        step_sizes.add(sizes)
    return repeated


class Run:
    """A replay under way: the allocator, and the block of every allocation."""

    def __init__(
        self,
        trace: Trace,
        capacity: int | None = None,
        settings: Settings | None = None,
        total: int | None = None,
    ) -> None:
        if settings is None:
            settings = parse(trace.allocator_settings, trace.torch_version)
        self.trace = trace
        self.device = Device(
            capacity,
            total,
            events_pending=True,
            multiprocessors=trace.gpu.multiprocessors,
            mallocs_before_launch=trace.mallocs_before_launch,
        )
        self.allocator = DeviceCachingAllocator(self.device, settings)
        self.blocks: dict[int, Block] = {}
        self.block_sizes = [0] * len(trace.allocations)
        """Bytes of the block that each allocation got."""
        self.repeated = self.repeated_short = 0
        """Steps that the trace leaves out, and how many of them were short of memory."""
        self.bounds: Mapping[int, int] = {}
        """Requests of these bytes are for as many, where there is memory for it."""
        self._deferred: dict[int, int] = {}

    def to_event(self, last: int | None) -> int | None:
        """Replay the events up to and with `last` (None: all); return the allocation that failed,
        if one did.
        """
        events = self.trace.events if last is None else self.trace.events[: last + 1]
        replayed = 0
        for repeat in self.trace.repeats:
            if repeat.end > len(events):
                break
            failed = self._replay(events[replayed : repeat.end])
            replayed = repeat.end
            if failed is None:
                failed = self._repeat(repeat)
            if failed is not None:
                return failed
        return self._replay(events[replayed:])

    def _replay(self, events: Sequence[Event]) -> int | None:
        """Replay these events; return the allocation that failed, if one did."""
        allocator, blocks, block_sizes = self.allocator, self.blocks, self.block_sizes
        malloc, free, allocations = allocator.malloc, allocator.free, self.trace.allocations
        # Plain integers: the members of an IntEnum are slow to look up and compare.
        alloc, free_requested = int(Op.ALLOC), int(Op.FREE_REQUESTED)
        free_completed = int(Op.FREE_COMPLETED)
        deferred, bounds = self._deferred, self.bounds
        requested = -1
        for op, number in events:
            if op == free_completed:
                if number == requested:
                    free(blocks[number])
                    requested = -1
                elif deferred.pop(number, -1) == allocator.num_sync_all_streams:
                    complete(allocator, blocks[number], _OTHER_STREAM)
                continue
            if requested >= 0:
                self._defer(requested)
                requested = -1
            if op == alloc:
                size, stream, _ = allocations[number]
                block = malloc(bounds.get(size, size), stream) or self._as_seen(size, stream)
                if block is None:
                    return number
                blocks[number] = block
                block_sizes[number] = block.size
            elif op == free_requested:
                requested = number
            else:
                allocator.empty_cache()
        if requested >= 0:
            self._defer(requested)
        return None

    def _as_seen(self, size: int, stream: int) -> "Block | None":
        """Serve a request that there was no memory for as large as it may be."""
        return self.allocator.malloc(size, stream) if size in self.bounds else None

    def _repeat(self, repeat: Repeat) -> int | None:
        """Replay steps that are left out; what is counted of them is not where, but how many were
        short of memory.
        """
        trace, allocator, history = self.trace, self.allocator, self.allocator.history
        events = trace.events[repeat.first : repeat.end]
        pairs = _handed_on(trace, events)
        if pairs is None:
            return None
        allocated = [number for op, number in events if op == Op.ALLOC]
        served, noted = allocator.allocations, len(history or ())
        met: dict[int, int] = {}
        short: list[bool] = []
        cycle = short
        failed = None
        most = min(repeat.times, MOST_REPEATS)
        while failed is None and len(short) < most:
            for old, new in pairs:
                self.blocks[old] = self.blocks[new]
                if new in self._deferred:
                    self._deferred[old] = self._deferred.pop(new)
            # The moments of a repeated step are those of the one in the trace.
            allocator.allocations = served - len(allocated)
            before = len(allocator.short_at)
            failed = self._replay(events)
            short.append(len(allocator.short_at) > before)
            del allocator.short_at[before:]
            places = hash(
                (allocator.reserved_bytes, *[self.blocks[number].ptr for number in allocated])
            )
            first = met.setdefault(places, len(short))
            if first < len(short) and cycle is short:
                # The others go round: what remains is what leaves memory as the last of them does.
                cycle = short[first:]
                most = len(short) + (repeat.times - len(short)) % len(cycle)
        if history is not None:  # whoever follows it knows the events of the trace alone
            history[noted:] = [
                entry for entry in history[noted:] if entry.action.startswith("segment")
            ]
        self.repeated += repeat.times
        self.repeated_short += sum(short) + (repeat.times - len(short)) * sum(cycle) // len(cycle)
        return failed

    def _defer(self, number: int) -> None:
        block = self.blocks[number]
        self.allocator.record_stream(block, _OTHER_STREAM)
        self.allocator.free(block)
        self._deferred[number] = self.allocator.num_sync_all_streams

    def moment(self, served: int) -> UsagePoint:
        """Say what was allocated when `served` allocations had been made, the last of them
        included.
        """
        live: set[int] = set()
        event = -1
        for op, number in self.trace.events:
            event += 1
            if op == Op.ALLOC:
                live.add(number)
                served -= 1
                if served <= 0:
                    break
            elif op == Op.FREE_REQUESTED:
                live.discard(number)
        totals: dict[Category, int] = {}
        for number in live & self.blocks.keys():
            category = self.trace.allocations[number].category
            totals[category] = totals.get(category, 0) + self.block_sizes[number]
        return UsagePoint(event, totals)


def _handed_on(trace: Trace, events: Sequence[Event]) -> list[tuple[int, int]] | None:
    """Return what a step frees of earlier ones, each with what it leaves in its place; None: it
    leaves something else.

    Of two that are alike the one that was allocated first stands for the first. What still waits
    for another stream is alike only to what waits, too.
    """
    allocated = {number for op, number in events if op == Op.ALLOC}
    requested = {number for op, number in events if op == Op.FREE_REQUESTED}
    freed = {number for op, number in events if op == Op.FREE_COMPLETED}
    if requested - freed - allocated:
        return None
    allocations = trace.allocations
    old = sorted(
        (*allocations[number][:2], number not in requested, number) for number in freed - allocated
    )
    kept = sorted(
        (*allocations[number][:2], number in requested, number) for number in allocated - freed
    )
    alike = [row[:3] for row in old] == [row[:3] for row in kept]
    if not alike:
        return None
    return [(before[3], after[3]) for before, after in zip(old, kept, strict=True)]
