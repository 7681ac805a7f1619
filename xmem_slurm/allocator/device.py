"""What does the allocator stand on? A device that hands out addresses and counts bytes, and never
runs anything.

These are the rules of the stand-in CUDA libraries (xmem_slurm/device), so that a replay can be
compared with torch's own library address by address:

- addresses are those of Note [Device addresses] (`allocator.addresses`);
- cudaMalloc charges its size rounded up to 2 MiB against the capacity, cuMemCreate its exact size,
  until freed;
- an event is ready at once, or, with `events_pending`, only after a synchronisation.
"""

from xmem_slurm.allocator.addresses import GRANULARITY, WINDOW_END, Addresses
from xmem_slurm.units import round_up


class Device:
    """One GPU.

    `capacity` is what the allocator can get, in bytes (None: no limit); `total` is all the memory
    that the GPU says it has, which is more when something else uses part of it, and by default the
    same. It has so many `multiprocessors`, and the first kernel is launched after so many calls of
    `malloc`; None: that is not known, and so nothing of the driver's own addresses.
    """

    __slots__ = (
        "addresses",
        "capacity",
        "completed_event",
        "events_pending",
        "mallocs_before_launch",
        "recorded_event",
        "total",
        "used",
    )

    UNLIMITED = 1 << 48
    """Stands for "no limit", in bytes: the address space of one GPU process (256 TiB)."""
    UNLIMITED_END = 1 << 62
    """Where addresses end then: each expandable segment takes more of them than all memory."""

    def __init__(
        self,
        capacity: int | None = None,
        total: int | None = None,
        *,
        events_pending: bool = False,
        multiprocessors: int | None = None,
        mallocs_before_launch: int | None = None,
    ) -> None:
        self.capacity = self.UNLIMITED if capacity is None else capacity
        self.total = self.capacity if total is None else total
        self.used = 0
        end = self.UNLIMITED_END if self.total == self.UNLIMITED else WINDOW_END
        self.addresses = Addresses(end, None if mallocs_before_launch is None else multiprocessors)
        self.mallocs_before_launch = mallocs_before_launch
        self.events_pending = events_pending
        self.recorded_event = 0
        self.completed_event = 0

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: the address, or None when memory is short."""
        if not self.create(round_up(size, GRANULARITY)):
            return None
        if self.mallocs_before_launch is not None:
            if self.mallocs_before_launch == 0:
                self.addresses.launched()
            self.mallocs_before_launch -= 1
        return self.reserve_addresses(size)

    def free(self, address: int, size: int) -> None:
        """CudaFree of what `malloc` returned for `size`."""
        self.release(round_up(size, GRANULARITY))
        self.addresses.give_back(address, size)

    def reserve_addresses(self, size: int) -> int:
        """cuMemAddressReserve: address space without memory."""
        return self.addresses.take(size)

    def create(self, size: int) -> bool:
        """cuMemCreate: memory without an address; False when memory is short."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """CuMemRelease."""
        self.used -= size

    def record_event(self) -> int:
        """cudaEventRecord: the event's number."""
        self.recorded_event += 1
        return self.recorded_event

    def event_is_ready(self, event: int) -> bool:
        """CudaEventQuery."""
        return not self.events_pending or event <= self.completed_event

    def synchronize(self) -> None:
        """cudaDeviceSynchronize: every event recorded so far is ready."""
        self.completed_event = self.recorded_event
