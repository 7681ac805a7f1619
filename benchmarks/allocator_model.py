"""The allocator model, fed with the operations of a corpus or of the fuzzer."""

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.allocator_oracle import Case
from xmem_slurm.allocator.addresses import Addresses
from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
from xmem_slurm.allocator.config import Settings
from xmem_slurm.allocator.device import Device
from xmem_slurm.allocator.snapshot import segments

if TYPE_CHECKING:
    from xmem_slurm.allocator.blocks import Block, PrivatePool

Operation = tuple[Any, ...]
"""("a", number, bytes, stream, pool or -1), ("f", number), ("r", number, stream), ("e",), ("s",) or
("l",)."""


class ModelRun:
    """A fresh allocator, and the block of each live allocation."""

    def __init__(self, settings: Settings, case: Case, addresses: Addresses | None = None) -> None:
        self.device = Device(
            case.capacity,
            case.total,
            events_pending=case.pending_events,
            multiprocessors=132,  # those of a stand-in that is told nothing
            mallocs_before_launch=sys.maxsize,  # nothing is launched
        )
        if addresses is not None:
            self.device.addresses = addresses
        self.allocator = DeviceCachingAllocator(self.device, settings)
        if case.fraction is not None:
            self.allocator.set_memory_fraction(case.fraction)
        self.pools: list[PrivatePool] = [
            self.allocator.create_pool((0, number + 1)) for number in range(case.pools)
        ]
        self.live: dict[int, Block] = {}

    def step(self, operation: Operation) -> int:
        """Do one operation; return an allocation's address or -1 for out of memory, and 0 for the
        other operations.
        """
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
            case ("l",):
                self.device.addresses.launched()
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
        """Return the statistics under torch's names (torch/cuda/memory.py `memory_stats`); bytes or
        counts.
        """
        live = self.allocator.allocations - self.allocator.frees
        pools = (
            ("small_pool", self.allocator.small_blocks.stats),
            ("large_pool", self.allocator.large_blocks.stats),
        )
        return {
            f"{name}.{figure}": value
            for pool, stats in pools
            for name, figure, value in (
                (f"allocated_bytes.{pool}", "current", stats.allocated_bytes),
                (f"allocated_bytes.{pool}", "peak", stats.allocated_bytes_peak),
                (f"reserved_bytes.{pool}", "current", stats.reserved_bytes),
                (f"reserved_bytes.{pool}", "peak", stats.reserved_bytes_peak),
            )
        } | {
            "allocated_bytes.all.current": self.allocator.allocated_bytes,
            "allocated_bytes.all.peak": self.allocator.allocated_bytes_peak,
            "allocated_bytes.all.allocated": self.allocator.allocated_bytes_total,
            "reserved_bytes.all.allocated": self.allocator.reserved_bytes_total,
            "reserved_bytes.all.current": self.allocator.reserved_bytes,
            "reserved_bytes.all.peak": self.allocator.reserved_bytes_peak,
            "active_bytes.all.current": self.allocator.allocated_bytes
            + self.allocator.pending_bytes,
            "active_bytes.all.peak": self.allocator.active_bytes_peak,
            "requested_bytes.all.current": self.allocator.requested_bytes,
            "requested_bytes.all.peak": self.allocator.requested_bytes_peak,
            "inactive_split_bytes.all.current": self.allocator.inactive_split_bytes,
            "inactive_split_bytes.all.peak": self.allocator.inactive_split_bytes_peak,
            "allocation.all.current": live,
            "active.all.current": live + self.allocator.pending,
            "inactive_split.all.current": self.allocator.inactive_split,
            "segment.all.current": self.allocator.segments,
            "segment.all.peak": self.allocator.segments_peak,
            "oversize_allocations.current": self.allocator.oversize_allocations,
            "oversize_segments.current": self.allocator.oversize_segments,
            "num_alloc_retries": self.allocator.num_alloc_retries,
            "num_ooms": self.allocator.num_ooms,
            "num_sync_all_streams": self.allocator.num_sync_all_streams,
            "num_device_alloc": self.allocator.num_device_alloc,
            "num_device_free": self.allocator.num_device_free,
        }

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
