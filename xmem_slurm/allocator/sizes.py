"""How many bytes does a request become, and how many does its segment have?

From c10/cuda/CUDACachingAllocator.cpp (2.4 to 2.10) and c10/core/AllocatorConfig.h (2.11 to 2.15).
"""

from xmem_slurm.allocator.config import ROUNDUP_INTERVALS, Settings
from xmem_slurm.units import MIB, round_up

MIN_BLOCK_SIZE = 512
"""Bytes: all sizes are rounded to at least this (kMinBlockSize)."""
SMALL_SIZE = 1 * MIB
"""Bytes: the largest "small" request (kSmallSize)."""
SMALL_BUFFER = 2 * MIB
"""Bytes: the segment of small requests, and page of expandable segments in the small pool
(kSmallBuffer)."""
MIN_LARGE_ALLOC = 10 * MIB
"""Bytes: requests from here on get a segment of their own (kMinLargeAlloc)."""
ROUND_LARGE = 2 * MIB
"""Bytes: such a segment is rounded up to this (kRoundLarge)."""


def round_size(size: int, settings: Settings) -> int:
    """Round a request as roundup_power2_divisions says, else to 512 bytes."""
    if size < MIN_BLOCK_SIZE:
        return MIN_BLOCK_SIZE
    interval = min(max(size.bit_length() - MIB.bit_length(), 0), ROUNDUP_INTERVALS - 1)
    divisions = settings.roundup_power2_divisions[interval]
    if divisions <= 1 or size <= MIN_BLOCK_SIZE * divisions:
        return round_up(size, MIN_BLOCK_SIZE)
    floor = 1 << (size.bit_length() - 1)
    return size if size == floor else round_up(size, floor // divisions)


def get_allocation_size(size: int, settings: Settings) -> int:
    """Return the bytes of the segment that a rounded request of `size` bytes would get."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return settings.large_segment_size
    return round_up(size, ROUND_LARGE)
