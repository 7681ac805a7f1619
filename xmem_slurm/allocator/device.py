"""What does the allocator stand on? A device that hands out addresses and counts bytes, and never runs anything.

These are the rules of the stand-in CUDA libraries (xmem_slurm/device), so that a replay can be compared with torch's own
library address by address:

- addresses grow from 0, 2 MiB aligned, and are never used twice;
- cudaMalloc charges its size rounded up to 2 MiB against the capacity, cuMemCreate its exact size; freeing gives it back;
- an event is ready at once, or, with `events_pending`, only after a synchronisation.
"""

from xmem_slurm.units import MIB, round_up

GRANULARITY = 2 * MIB
"""Bytes of one page of GPU memory (cuMemGetAllocationGranularity on every NVIDIA GPU since Pascal)."""


class Device:
    """One GPU. `capacity` is what the allocator may use, in bytes; None for no limit."""

    __slots__ = ("capacity", "completed_event", "events_pending", "next_address", "recorded_event", "used")

    UNLIMITED = 1 << 48
    """Stands for "no limit", in bytes: the address space of one GPU process (256 TiB)."""

    def __init__(self, capacity: int | None = None, *, events_pending: bool = False) -> None:
        self.capacity = self.UNLIMITED if capacity is None else capacity
        self.used = 0
        self.next_address = 0
        self.events_pending = events_pending
        self.recorded_event = 0
        self.completed_event = 0

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: the address, or None when memory is short."""
        if not self.create(round_up(size, GRANULARITY)):
            return None
        return self.reserve_addresses(size)

    def free(self, size: int) -> None:
        """cudaFree of what `malloc` returned for `size`."""
        self.release(round_up(size, GRANULARITY))

    def reserve_addresses(self, size: int) -> int:
        """cuMemAddressReserve: address space without memory."""
        address = self.next_address
        self.next_address += round_up(size, GRANULARITY)
        return address

    def create(self, size: int) -> bool:
        """cuMemCreate: memory without an address; False when memory is short."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """cuMemRelease."""
        self.used -= size

    def record_event(self) -> int:
        """cudaEventRecord: the event's number."""
        self.recorded_event += 1
        return self.recorded_event

    def event_is_ready(self, event: int) -> bool:
        """cudaEventQuery."""
        return not self.events_pending or event <= self.completed_event

    def synchronize(self) -> None:
        """cudaDeviceSynchronize: every event recorded so far is ready."""
        self.completed_event = self.recorded_event
