"""What does the allocator give back when memory is short? The steps of the out-of-memory path.

Upstream functions of the same names, c10/cuda/CUDACachingAllocator.cpp (2.4 to 2.15).
"""

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from xmem_slurm.allocator import events
from xmem_slurm.allocator.blocks import ADDRESS_BITS, Block, BlockPool, FreeList
from xmem_slurm.allocator.expandable import release_expandable_segment, unmap_block

if TYPE_CHECKING:
    from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator


def garbage_collect_cached_blocks(allocator: "DeviceCachingAllocator") -> None:
    """Free the oldest unsplit large blocks once the memory held passes the threshold."""
    threshold = int(
        allocator.settings.garbage_collection_threshold * allocator.allowed_memory_maximum
    )
    target = allocator.reserved_bytes - threshold
    freeable = [
        block
        for block in allocator.large_blocks
        if not block.is_split and block.expandable_segment is None
    ]
    total_age = sum(block.gc_count for block in freeable)
    reclaimed = 0
    freed = True
    while reclaimed < target and freed and freeable:
        age_threshold = total_age / len(freeable)
        old = [block for block in freeable if block.gc_count >= age_threshold]
        freed = bool(old)
        for block in old:
            reclaimed += block.size
            total_age -= block.gc_count
            freeable.remove(block)
            release_block(allocator, block)


def release_available_cached_blocks(
    allocator: "DeviceCachingAllocator", free_list: FreeList, size: int
) -> bool:
    """Free just enough oversize blocks of the stream for the request; False when they do not
    suffice.
    """
    max_split_size = allocator.settings.max_split_size
    if max_split_size == math.inf:
        return False
    wanted = max(size, int(max_split_size))
    index = bisect_left(free_list.keys, wanted << ADDRESS_BITS)
    if index < len(free_list.blocks) and free_list.blocks[index].expandable_segment is None:
        release_block(allocator, free_list.blocks[index])
        return True
    # No single block is large enough: free several, the largest first.
    released = 0
    for block in reversed(free_list.blocks[:index]):
        if released >= wanted or block.size < max_split_size:
            break
        if block.expandable_segment is None:
            released += block.size
            release_block(allocator, block)
    return released >= wanted


def release_cached_blocks(allocator: "DeviceCachingAllocator") -> None:
    """Wait for all events, then free every free segment of the default pool and of private pools
    without users.
    """
    events.synchronize(allocator)
    release_blocks(allocator, allocator.large_blocks)
    release_blocks(allocator, allocator.small_blocks)
    for pool in list(allocator.graph_pools_freeable.values()):
        release_blocks(allocator, pool.small_blocks)
        release_blocks(allocator, pool.large_blocks)
        if pool.malloc_count == 0:
            del allocator.graph_pools[pool.pool_id]
            del allocator.graph_pools_freeable[pool.pool_id]


def release_blocks(allocator: "DeviceCachingAllocator", pool: BlockPool) -> None:
    """Free the free segments of a pool; of expandable segments, the free pages."""
    free = list(pool)
    for block in free:
        if block.expandable_segment is None and not block.is_split:
            release_block(allocator, block)
    for block in free:
        if block.expandable_segment is not None:
            unmap_block(allocator, block)
            if not block.is_split:  # nothing of its segment is mapped any more
                release_expandable_segment(block)


def release_block(allocator: "DeviceCachingAllocator", block: Block) -> None:
    """Give one free, unsplit segment back to the device (cudaFree)."""
    pool = block.free_list.pool
    block.free_list.remove(block)
    allocator.device.free(block.ptr, block.size)
    allocator.count_reserved(pool, -block.size)
    allocator.segments -= 1
    allocator.oversize_segments -= block.size >= allocator.settings.max_split_size
    allocator.num_device_free += 1
    allocator.record_trace("segment_free", block.ptr, block.size, block.free_list.stream)
    if pool.owner is not None:
        pool.owner.malloc_count -= 1
