"""How does a segment grow? Expandable segments (`expandable_segments:True`).

Note [Expandable Segments], c10/cuda/CUDACachingAllocator.cpp (2.4 to 2.15): one segment per pool
and stream reserves addresses for more than the whole GPU and maps memory behind them in handles of
a fixed size, lowest address first. A free list then holds the mapped free blocks, and `unmapped`
the ranges without memory. The functions below are upstream's, by name.
"""

from typing import TYPE_CHECKING

from xmem_slurm.allocator.blocks import Block, FreeList
from xmem_slurm.allocator.sizes import SMALL_BUFFER

if TYPE_CHECKING:
    from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
    from xmem_slurm.allocator.device import Device


class ExpandableSegment:
    """A range of addresses, and which of its handles (`segment_size` bytes each) have memory."""

    def __init__(self, device: "Device", segment_size: int, reserve: float | int | None) -> None:
        self.device = device
        self.segment_size = segment_size
        # 1 1/8 of the GPU, so that pages unmapped early in the segment can come back at its end.
        address_space = device.total + device.total // 8
        if reserve is not None:
            address_space = min(
                address_space, reserve if isinstance(reserve, int) else int(reserve * device.total)
            )
        self.max_handles = -(-address_space // segment_size)
        self.size = self.max_handles * segment_size
        self.ptr = device.reserve_addresses(self.size)

    def map(self, ptr: int, size: int) -> int:
        """Put memory behind the handles from `ptr` (handle-aligned) on; return the bytes mapped.

        Either all handles get memory or none does, and then it is 0.
        """
        begin = (ptr - self.ptr) // self.segment_size
        end = -(-(ptr + size - self.ptr) // self.segment_size)
        mapped = (end - begin) * self.segment_size
        return mapped if self.device.create(mapped) else 0

    def unmap(self, ptr: int, size: int) -> tuple[int, int]:
        """Give back the handles that lie wholly inside the range; return the address and size given
        back.
        """
        begin = -(-(ptr - self.ptr) // self.segment_size)
        end = (ptr + size - self.ptr) // self.segment_size
        if begin >= end:
            return ptr, 0
        # cuMemUnmap does not wait for the GPU, so upstream waits for the stream first.
        self.device.synchronize()
        size = (end - begin) * self.segment_size
        self.device.release(size)
        return self.ptr + begin * self.segment_size, size


def _allocatable(block: Block | None) -> bool:
    return (
        block is not None
        and not block.allocated
        and block.event_count == 0
        and not block.stream_uses
    )


def find_expandable_block(
    allocator: "DeviceCachingAllocator", free_list: FreeList, size: int
) -> Block | None:
    """Return the lowest block from which `size` bytes of free or unmapped room follow; reserve a
    segment if none.

    None when a fresh segment would be too small: the request is larger than the GPU, or the reserve
    has been set small.
    """
    for block in free_list.unmapped:
        before = block.prev
        candidate = before if before is not None and _allocatable(before) else block
        room = 0
        following: Block | None = candidate
        while room < size and following is not None and _allocatable(following):
            room += following.size
            following = following.next
        if room >= size:
            return candidate
    segment_size = (
        SMALL_BUFFER if free_list.pool.is_small else allocator.settings.large_segment_size
    )
    segment = ExpandableSegment(
        allocator.device, segment_size, allocator.settings.expandable_segments_reserve
    )
    if segment.size < size and not allocator.settings.release.keeps_short_segments:
        return None
    candidate = allocator.new_block(free_list, segment.ptr, segment.size)
    candidate.mapped = False
    candidate.expandable_segment = segment
    free_list.insert_unmapped(candidate)
    return candidate


def map_block(allocator: "DeviceCachingAllocator", to_map: Block, size: int) -> bool:
    """Put memory behind the first `size` bytes of an unmapped block and free it; False when memory
    is short.
    """
    segment = to_map.expandable_segment
    assert isinstance(segment, ExpandableSegment)
    mapped = segment.map(to_map.ptr, size)
    if mapped == 0:
        return False
    free_list = to_map.free_list
    mapped_at = to_map.ptr
    free_list.remove_unmapped(to_map)
    to_map.mapped = True
    if mapped < to_map.size:
        remaining = allocator.new_block(free_list, to_map.ptr + mapped, to_map.size - mapped)
        remaining.mapped = False
        remaining.expandable_segment = segment
        remaining.splice(to_map, to_map.next)
        free_list.insert_unmapped(remaining)
        to_map.size = mapped
    try_merge_blocks(to_map, to_map.prev)
    try_merge_blocks(to_map, to_map.next)
    free_list.insert(to_map)
    allocator.count_reserved(free_list.pool, mapped)
    allocator.num_device_alloc += 1
    allocator.record_trace("segment_map", mapped_at, mapped, free_list.stream)
    return True


def try_allocate_expandable_block(
    allocator: "DeviceCachingAllocator", free_list: FreeList, size: int
) -> Block | None:
    """Return a mapped block of at least `size` bytes, taken out of the free list; None when memory
    is short.
    """
    candidate = find_expandable_block(allocator, free_list, size)
    if candidate is None:
        return None
    if not candidate.mapped and not map_block(allocator, candidate, min(candidate.size, size)):
        return None
    while candidate.size < size:
        # candidate is free and followed by an unmapped block: map_block merges the two
        following = candidate.next
        assert following is not None
        if not map_block(allocator, following, min(size - candidate.size, following.size)):
            return None
        candidate = following
    free_list.remove(candidate)
    return candidate


def try_merge_blocks(block: Block, neighbour: Block | None) -> int:
    """Absorb a neighbour that is free, or unmapped like `block`; return the bytes absorbed."""
    if neighbour is None or not _allocatable(neighbour) or block.mapped != neighbour.mapped:
        return 0
    if block.prev is neighbour:
        block.ptr = neighbour.ptr
        block.prev = neighbour.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = neighbour.next
        if block.next is not None:
            block.next.prev = block
    if neighbour.mapped:
        neighbour.free_list.remove(neighbour)
    else:
        neighbour.free_list.remove_unmapped(neighbour)
    block.size += neighbour.size
    return neighbour.size


def unmap_block(allocator: "DeviceCachingAllocator", block: Block) -> None:
    """Give back the whole handles inside a free block; what is left of it on either side stays
    free.
    """
    segment = block.expandable_segment
    assert isinstance(segment, ExpandableSegment)
    ptr, size = segment.unmap(block.ptr, block.size)
    if size == 0:
        return
    free_list = block.free_list
    free_list.remove(block)
    for rest_ptr, rest_size in (
        (block.ptr, ptr - block.ptr),
        (ptr + size, block.ptr + block.size - ptr - size),
    ):
        if rest_size > 0:
            rest = allocator.new_block(free_list, rest_ptr, rest_size)
            rest.expandable_segment = segment
            if rest_ptr < ptr:
                rest.splice(block.prev, block)
            else:
                rest.splice(block, block.next)
            free_list.insert(rest)
    block.ptr, block.size, block.mapped = ptr, size, False
    try_merge_blocks(block, block.prev)
    try_merge_blocks(block, block.next)
    free_list.insert_unmapped(block)
    allocator.count_reserved(free_list.pool, -size)
    if free_list.pool.owner is not None:
        free_list.pool.owner.malloc_count -= 1
    allocator.num_device_free += 1
    allocator.record_trace("segment_unmap", ptr, size, free_list.stream)


def release_expandable_segment(block: Block) -> None:
    """Give back the addresses of a segment that is one unmapped block (cuMemAddressFree)."""
    segment = block.expandable_segment
    assert isinstance(segment, ExpandableSegment)
    block.free_list.remove_unmapped(block)
    segment.device.addresses.give_back(segment.ptr, segment.size)
