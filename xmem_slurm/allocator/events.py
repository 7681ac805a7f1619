"""Which blocks wait for which stream, and in what order are they freed when several streams are
ready?

Upstream keeps `cuda_events`, a hash table from stream to queue, and visits it slot by slot
(c10/util/flat_hash_map.h, 2.4 to 2.15). The order decides nothing but how high inactive_split_bytes
rises in between, but that is a statistic too.
"""

from typing import TYPE_CHECKING

from xmem_slurm.allocator.blocks import Block

if TYPE_CHECKING:
    from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator

_FIBONACCI = 11400714819323198485
"""The multiplier of fibonacci_hash_policy: 2^64 divided by the golden ratio."""
_CUDA_DEVICE_BITS = 1 << 56
"""Device type CUDA and device 0 in `c10::Stream::hash()`."""


class EventQueues(dict[int, dict[Block, int]]):
    """For each stream of use, the blocks that wait for it, oldest first, with the number of their
    event.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots = 4

    def add(self, stream: int) -> None:
        """Make an empty queue, in its place in the order of visits."""
        if 2 * (len(self) + 1) > self._slots:
            self._slots *= 2
            self._sort()
        self[stream] = {}
        self._sort()

    def _sort(self) -> None:
        # Equal slots keep the order in which they came: a later one is put behind.
        queues = sorted(self.items(), key=lambda item: self._slot(item[0]))
        self.clear()
        self.update(queues)

    def _slot(self, stream: int) -> int:
        hashed = (_FIBONACCI * (_CUDA_DEVICE_BITS | _stream_id(stream))) % (1 << 64)
        return hashed * self._slots >> 64


def _stream_id(stream: int) -> int:
    """Return torch's number of the n-th stream that a program takes from the pool of normal
    priority; 0 is the default.

    c10/cuda/CUDAStream.cpp, `makeStreamId`: the place in the pool, four bits of the kind of stream
    (1), one set bit.
    """
    return 0 if stream <= 0 else (stream - 1) << 5 | 1 << 1 | 1


def wait(allocator: "DeviceCachingAllocator", block: Block) -> None:
    """Let a freed block wait for the streams that use it (`insert_events`)."""
    streams, block.stream_uses = block.stream_uses, ()
    for stream in streams:
        block.event_count += 1
        if stream not in allocator.cuda_events:
            allocator.cuda_events.add(stream)
        allocator.cuda_events[stream][block] = allocator.device.record_event()


def process(allocator: "DeviceCachingAllocator") -> None:
    """Free the blocks whose events are ready, stream by stream, each stream in order
    (`process_events`).
    """
    for stream in list(allocator.cuda_events):
        waiting = allocator.cuda_events[stream]
        while waiting:
            block, event = next(iter(waiting.items()))
            if not allocator.device.event_is_ready(event):
                break
            complete(allocator, block, stream)


def synchronize(allocator: "DeviceCachingAllocator") -> None:
    """Wait for every event and free its block (`synchronize_and_free_events`)."""
    allocator.num_sync_all_streams += 1
    allocator.device.synchronize()
    for stream, waiting in list(allocator.cuda_events.items()):
        for block in list(waiting):
            complete(allocator, block, stream)


def complete(allocator: "DeviceCachingAllocator", block: Block, stream: int) -> None:
    """Say that a freed block's use on a stream has ended; after the last such use the block is
    free.
    """
    waiting = allocator.cuda_events[stream]
    del waiting[block]
    if not waiting:
        del allocator.cuda_events[stream]
    block.event_count -= 1
    if block.event_count == 0:
        allocator.pending -= 1
        allocator.pending_bytes -= block.size
        allocator.free_block(block)
