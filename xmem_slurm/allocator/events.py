"""Which blocks wait for which stream, and in what order are they freed when several streams are ready?

Upstream keeps `cuda_events`, a hash table from stream to queue, and visits it slot by slot (c10/util/flat_hash_map.h,
2.4 to 2.15). The order decides nothing but how high inactive_split_bytes rises in between, but that is a statistic too.
"""

from xmem_slurm.allocator.blocks import Block

_FIBONACCI = 11400714819323198485
"""The multiplier of fibonacci_hash_policy: 2^64 divided by the golden ratio."""
_CUDA_DEVICE_BITS = 1 << 56
"""Device type CUDA and device 0 in `c10::Stream::hash()`."""


class EventQueues(dict[int, dict[Block, int]]):
    """For each stream of use, the blocks that wait for it, oldest first, with the number of their event."""

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
    """Return torch's number of the n-th stream that a program takes from the pool of normal priority; 0 is the default.

    c10/cuda/CUDAStream.cpp, `makeStreamId`: the place in the pool, four bits of the kind of stream (1), one set bit.
    """
    return 0 if stream <= 0 else (stream - 1) << 5 | 1 << 1 | 1
