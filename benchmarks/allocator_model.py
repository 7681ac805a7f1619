"""The allocator model, fed with the operations of a corpus or of the fuzzer."""

from typing import TYPE_CHECKING, Any

from benchmarks.allocator_oracle import Case
from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
from xmem_slurm.allocator.config import Settings
from xmem_slurm.allocator.device import Device
from xmem_slurm.allocator.snapshot import memory_stats, segments

if TYPE_CHECKING:
    from xmem_slurm.allocator.blocks import Block, PrivatePool

Operation = tuple[Any, ...]
"""("a", number, bytes, stream, pool or -1), ("f", number), ("r", number, stream), ("e",) or ("s",)."""


class ModelRun:
    """A fresh allocator, and the block of each live allocation."""

    def __init__(self, settings: Settings, case: Case) -> None:
        self.device = Device(case.capacity, case.total, events_pending=case.pending_events)
        self.allocator = DeviceCachingAllocator(self.device, settings)
        if case.fraction is not None:
            self.allocator.set_memory_fraction(case.fraction)
        self.pools: list[PrivatePool] = [self.allocator.create_pool((0, number + 1)) for number in range(case.pools)]
        self.live: dict[int, Block] = {}

    def step(self, operation: Operation) -> int:
        """Do one operation; return an allocation's address or -1 for out of memory, and 0 for the other operations."""
        match operation:
            case "a", number, size, stream, pool:
                return self._allocate(number, size, stream, pool)
            case "f", number:
                self.allocator.free(self.live.pop(number))
            case "r", number, stream:
                self.allocator.record_stream(self.live[number], stream)
            case ("e",):
                self.allocator.empty_cache()
            case ("s",):
                self.device.synchronize()
            case _:
                raise ValueError(f"operation {operation!r}")
        return 0

    def _allocate(self, number: int, size: int, stream: int, pool: int) -> int:
        if pool >= 0:
            self.allocator.begin_allocate_to_pool(self.pools[pool])
        block = self.allocator.malloc(size, stream)
        if pool >= 0:
            self.allocator.end_allocate_to_pool()
        if block is None:
            return -1
        self.live[number] = block
        return block.ptr

    def stats(self) -> dict[str, int]:
        """Return the statistics."""
        return memory_stats(self.allocator)

    def segments(self) -> list[str]:
        """Return the segments in the oracle's form."""
        states = {"active_allocated": "A", "active_pending_free": "P", "inactive": "I"}
        lines = []
        for segment in segments(self.allocator, self.live.values()):
            head = (
                segment["address"],
                segment["total_size"],
                segment["stream"],
                segment["segment_type"][0],
                int(segment["is_expandable"]),
                segment["segment_pool_id"][1] - 1,
            )
            blocks = [
                figure
                for block in segment["blocks"]
                for figure in (block["size"], block["requested_size"], states[block["state"]])
            ]
            lines.append(" ".join(map(str, (*head, *blocks))))
        return lines
