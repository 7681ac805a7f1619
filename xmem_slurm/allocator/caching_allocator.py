"""How does torch hand out GPU memory? A model of c10::cuda::CUDACachingAllocator, to be read next
to the original.

The policy (header comment of c10/cuda/CUDACachingAllocator.cpp, 2.4 to 2.15):

- allocations belong to a stream; once freed, a block serves the same stream only;
- a request takes the smallest free block that fits; a larger block is split;
- if none fits, a segment comes from cudaMalloc; if that fails, free what is cached and try again;
- requests up to 1 MiB are packed in 2 MiB segments, up to 10 MiB in 20 MiB segments, above in a
  segment of their own;
- free neighbours in a segment are merged; a segment goes back to CUDA only whole (or by pages, if
  expandable).

`malloc` and `free_block` are the hot paths: they carry their common case inline, without a call per
rule, because a replay runs them hundreds of thousands of times. The rare cases are in reclaim.py
and expandable.py.
"""
# ruff: noqa: PLR1730 - max() is a call, which the hot paths do without

import math
from bisect import bisect_left
from typing import NamedTuple

from xmem_slurm.allocator import events, expandable, reclaim
from xmem_slurm.allocator.blocks import (
    ADDRESS_BITS,
    Block,
    BlockPool,
    FreeList,
    PoolStats,
    PrivatePool,
)
from xmem_slurm.allocator.config import Settings
from xmem_slurm.allocator.device import Device
from xmem_slurm.allocator.sizes import MIN_BLOCK_SIZE, SMALL_SIZE, get_allocation_size, round_size


class TraceEntry(NamedTuple):
    """One entry of torch's memory history; `size` in bytes. For "oom", `address` is the memory that
    was free.
    """

    action: str
    address: int
    size: int
    stream: int


class _Rejected(Exception):  # noqa: N818 - torch's word (num_oom_rejections)
    """throw_on_cudamalloc_oom: the request fails at once, whatever cached memory could still be
    freed (2.12).
    """


class DeviceCachingAllocator:
    """The allocator of one GPU. Attributes ending in `_bytes` and `_peak` are
    torch.cuda.memory_stats(), in bytes.

    `malloc` returns a Block, which the caller keeps and gives to `free`; None is
    torch.cuda.OutOfMemoryError.
    """

    def __init__(self, device: Device, settings: Settings) -> None:
        self.device = device
        self.settings = settings
        self._blocks_made = 0
        self._reject_from: float = math.inf
        if settings.throw_on_cudamalloc_oom:
            fraction = settings.per_process_memory_fraction
            self._reject_from = int((1.0 if fraction is None else fraction) * device.total)
        self.allowed_memory_maximum: float = math.inf
        self.set_memory_fraction(settings.per_process_memory_fraction)
        # should_split: with expandable segments every remainder of a block counts, and
        # max_split_size does not.
        large_split_from = MIN_BLOCK_SIZE if settings.expandable_segments else SMALL_SIZE + 1
        self._never_split_from = (
            math.inf if settings.expandable_segments else settings.max_split_size
        )
        self._first_fit_only = (
            not settings.expandable_segments and settings.max_split_size == math.inf
        )
        self._roundup = any(divisions > 1 for divisions in settings.roundup_power2_divisions)
        self.small_blocks = BlockPool(PoolStats(), is_small=True, split_from=MIN_BLOCK_SIZE)
        self.large_blocks = BlockPool(PoolStats(), is_small=False, split_from=large_split_from)
        self.graph_pools: dict[tuple[int, int], PrivatePool] = {}
        self.graph_pools_freeable: dict[tuple[int, int], PrivatePool] = {}
        self.active_pool: PrivatePool | None = None
        self.capturing = False
        self.cuda_events = events.EventQueues()
        self.history: list[TraceEntry] | None = None
        """What happened, in torch's words (`record_trace`); kept once somebody has put a list
        here."""

        self.allocated_bytes = self.allocated_bytes_peak = self.allocated_bytes_total = 0
        self.requested_bytes = self.requested_bytes_peak = 0
        self.reserved_bytes = self.reserved_bytes_peak = self.reserved_bytes_total = 0
        self.inactive_split_bytes = self.inactive_split_bytes_peak = 0
        self.pending_bytes = 0
        """Bytes of freed blocks that wait for events; torch's active bytes are allocated plus
        these."""
        self.active_bytes_peak = 0
        self.allocations = self.frees = self.pending = 0
        self.allocated_peak_at = 0
        """How many allocations had been served when the peak was first reached, the one that
        reached it included."""
        self.inactive_split = 0
        self.segments = self.segments_peak = 0
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
        self.short_at: list[int] = []
        """How many allocations had been served each time that the device had no room for a
        segment."""
        self.oversize_allocations = self.oversize_segments = 0

    def set_memory_fraction(self, fraction: float | None) -> None:
        """torch.cuda.set_per_process_memory_fraction; 1 is no limit."""
        self.allowed_memory_maximum = math.inf
        if fraction is not None and (fraction < 1 or self.settings.release.full_fraction_limits):
            self.allowed_memory_maximum = int(fraction * self.device.total)
        limited = self.allowed_memory_maximum != math.inf
        self._collects_garbage = limited and self.settings.garbage_collection_threshold > 0
        self._marks_age = self._collects_garbage or self.settings.release.oldest_block_first

    # Requests

    def malloc(  # noqa: C901, PLR0912, PLR0915 - the hot path: see the module's docstring
        self, orig_size: int, stream: int = 0
    ) -> Block | None:
        """Hand out a block of at least `orig_size` bytes (1 or more) for a stream; None when memory
        is short.
        """
        if self.cuda_events and not self.capturing:
            events.process(self)
        owner = self.active_pool
        small_blocks, large_blocks = self.small_blocks, self.large_blocks
        if owner is not None:
            small_blocks, large_blocks = owner.small_blocks, owner.large_blocks
        size = round_size(orig_size, self.settings) if self._roundup else (orig_size + 511) & -512
        pool = small_blocks if size <= SMALL_SIZE else large_blocks
        free_list = pool.free_lists.get(stream) or pool.free_list(stream)

        # get_free_block
        keys = free_list.keys
        if self._collects_garbage:
            pool.get_free_blocks_call_count += 1
        index = bisect_left(keys, size << ADDRESS_BITS)
        if not self._first_fit_only:
            index = self._choose(free_list, index, size)
        if index < len(keys):
            del keys[index]
            block = free_list.blocks.pop(index)
        else:
            fresh = self._malloc_from_device(free_list, size)
            if fresh is None:
                return None
            block = fresh

        # alloc_found_block
        block_size = block.size
        remaining_size = block_size - size
        if remaining_size >= pool.split_from and size < self._never_split_from:
            remaining = block
            block = Block(free_list, remaining.ptr, size)
            before = remaining.prev
            expandable_segment = remaining.expandable_segment
            if expandable_segment is not None:
                block.expandable_segment = expandable_segment
            elif before is not None or remaining.next is not None:
                self.inactive_split_bytes -= size
            else:
                self.inactive_split += 1
                self.inactive_split_bytes += remaining_size
                if self.inactive_split_bytes > self.inactive_split_bytes_peak:
                    self.inactive_split_bytes_peak = self.inactive_split_bytes
            if before is not None:
                block.prev = before
                before.next = block
            block.next = remaining
            remaining.prev = block
            remaining.ptr += size
            remaining.size = remaining_size
            remaining.cached = True
            key = remaining_size << ADDRESS_BITS | remaining.ptr
            if self._marks_age:
                block.serial = self._next_serial()
                remaining.gc_count_base = pool.get_free_blocks_call_count
                key = remaining_size << ADDRESS_BITS | (remaining.serial or remaining.ptr)
            remaining.key = key
            index = bisect_left(keys, key)
            keys.insert(index, key)
            free_list.blocks.insert(index, remaining)
            block_size = size
        else:
            block.cached = False
            if block.expandable_segment is None and (
                block.prev is not None or block.next is not None
            ):
                self.inactive_split -= 1
                self.inactive_split_bytes -= block_size
        block.allocated = True
        block.requested_size = orig_size
        self.allocations += 1
        self.allocated_bytes_total += block_size
        requested = self.requested_bytes = self.requested_bytes + orig_size
        if requested > self.requested_bytes_peak:
            self.requested_bytes_peak = requested
        allocated = self.allocated_bytes = self.allocated_bytes + block_size
        if allocated > self.allocated_bytes_peak:
            self.allocated_bytes_peak = allocated
            self.allocated_peak_at = self.allocations
        stats = pool.stats
        in_pool = stats.allocated_bytes = stats.allocated_bytes + block_size
        if in_pool > stats.allocated_bytes_peak:
            stats.allocated_bytes_peak = in_pool
        active = allocated + self.pending_bytes
        if active > self.active_bytes_peak:
            self.active_bytes_peak = active
        if block_size >= self.settings.max_split_size:
            self.oversize_allocations += 1
        if self.history is not None:
            self.history.append(TraceEntry("alloc", block.ptr, orig_size, stream))
        return block

    def _choose(self, free_list: FreeList, index: int, size: int) -> int:
        """Return the place of the free block to take, from the first that fits on; the list's
        length for none.
        """
        blocks = free_list.blocks
        if index == len(blocks):
            return index
        if self.settings.expandable_segments:
            # A block that can grow counts with the size that it can grow to, so a larger block may
            # fit better.
            while blocks[index].expandable_segment is not None and index + 1 < len(blocks):
                if _expandable_size(blocks[index + 1]) >= _expandable_size(blocks[index]):
                    break
                index += 1
        block_size = blocks[index].size
        if size < self.settings.max_split_size:
            fits = block_size < self.settings.max_split_size
        else:
            fits = block_size < size + self.settings.max_non_split_rounding_size
        return index if fits else len(blocks)

    def _malloc_from_device(self, free_list: FreeList, size: int) -> Block | None:
        """Get a new segment, freeing what is cached if need be: the out-of-memory path, in
        upstream's order.
        """
        if self._collects_garbage:
            reclaim.garbage_collect_cached_blocks(self)
        try:
            block = self._alloc_block(free_list, size)
            if block is None:
                self.short_at.append(self.allocations)
            if block is None and reclaim.release_available_cached_blocks(self, free_list, size):
                block = self._alloc_block(free_list, size)
            if block is None and not self.capturing:
                reclaim.release_cached_blocks(self)
                self.num_alloc_retries += 1
                block = self._alloc_block(free_list, size)
        except _Rejected:
            return None
        if block is None:
            self.num_ooms += 1
            self.record_trace(
                "oom", self.device.capacity - self.device.used, size, free_list.stream
            )
        return block

    def _alloc_block(self, free_list: FreeList, size: int) -> Block | None:
        """Get one segment from the device, or grow an expandable one (`alloc_block`)."""
        alloc_size = get_allocation_size(size, self.settings)
        if self.reserved_bytes + alloc_size > self.allowed_memory_maximum:
            return None
        if self.reserved_bytes + alloc_size > self._reject_from:
            raise _Rejected
        pool = free_list.pool
        if self.settings.expandable_segments and (
            pool.owner is None or self.settings.release.private_pools_expand
        ):
            block = expandable.try_allocate_expandable_block(self, free_list, size)
        else:
            ptr = self.device.malloc(alloc_size)
            block = None if ptr is None else self.new_block(free_list, ptr, alloc_size)
            if block is not None:
                self.segments += 1
                self.segments_peak = max(self.segments_peak, self.segments)
                self.count_reserved(pool, alloc_size)
                self.oversize_segments += alloc_size >= self.settings.max_split_size
                self.num_device_alloc += 1
                self.record_trace("segment_alloc", block.ptr, alloc_size, free_list.stream)
        if block is not None and pool.owner is not None:
            pool.owner.malloc_count += 1
        return block

    def new_block(self, free_list: FreeList, ptr: int, size: int) -> Block:
        """Make a block."""
        block = Block(free_list, ptr, size)
        block.serial = self._next_serial()
        return block

    def _next_serial(self) -> int:
        if not self.settings.release.oldest_block_first:
            return 0
        self._blocks_made += 1
        return self._blocks_made

    def count_reserved(self, pool: BlockPool, change: int) -> None:
        """Add to the bytes held from the device."""
        self.reserved_bytes += change
        if self.reserved_bytes > self.reserved_bytes_peak:
            self.reserved_bytes_peak = self.reserved_bytes
        self.reserved_bytes_total += max(change, 0)
        stats = pool.stats
        stats.reserved_bytes += change
        stats.reserved_bytes_peak = max(stats.reserved_bytes_peak, stats.reserved_bytes)

    def record_trace(self, action: str, address: int, size: int, stream: int) -> None:
        """Note what happened, if the history is kept."""
        if self.history is not None:
            self.history.append(TraceEntry(action, address, size, stream))

    # Frees

    def free(self, block: Block) -> None:
        """Take a block back. If other streams used it, it waits for them first."""
        block.allocated = False
        size = block.size
        if self.history is not None:
            self.history.append(
                TraceEntry(
                    "free_requested", block.ptr, block.requested_size, block.free_list.stream
                )
            )
        self.frees += 1
        self.allocated_bytes -= size
        block.free_list.pool.stats.allocated_bytes -= size
        if size >= self.settings.max_split_size:
            self.oversize_allocations -= 1
        if block.stream_uses:
            self.pending_bytes += size
            self.pending += 1
            events.wait(self, block)
        else:
            self.free_block(block)

    def free_block(self, block: Block) -> None:
        """Move a block into its pool's free blocks, merged with free neighbours."""
        free_list = block.free_list
        keys = free_list.keys
        if self.history is not None:
            self.history.append(
                TraceEntry("free_completed", block.ptr, block.requested_size, free_list.stream)
            )
        count = 0
        change = 0
        before = block.prev
        if before is not None and before.cached:
            index = bisect_left(keys, before.key)
            del keys[index]
            del free_list.blocks[index]
            block.ptr = before.ptr
            grand = block.prev = before.prev
            if grand is not None:
                grand.next = block
            change -= before.size
            block.size += before.size
            count -= 1
        after = block.next
        if after is not None and after.cached:
            index = bisect_left(keys, after.key)
            del keys[index]
            del free_list.blocks[index]
            grand = block.next = after.next
            if grand is not None:
                grand.prev = block
            change -= after.size
            block.size += after.size
            count -= 1
        block.cached = True
        key = block.size << ADDRESS_BITS | block.ptr
        if self._marks_age:
            block.gc_count_base = free_list.pool.get_free_blocks_call_count
            key = block.size << ADDRESS_BITS | (block.serial or block.ptr)
        block.key = key
        index = bisect_left(keys, key)
        keys.insert(index, key)
        free_list.blocks.insert(index, block)
        if block.expandable_segment is None:
            if block.prev is not None or block.next is not None:
                count += 1
                change += block.size
            self.inactive_split += count
            inactive = self.inactive_split_bytes = self.inactive_split_bytes + change
            if inactive > self.inactive_split_bytes_peak:
                self.inactive_split_bytes_peak = inactive
        self.requested_bytes -= block.requested_size

    # Use on other streams

    def record_stream(self, block: Block, stream: int) -> None:
        """Tensor.record_stream: the block is used on another stream."""
        if stream != block.free_list.stream and stream not in block.stream_uses:
            block.stream_uses = (*block.stream_uses, stream)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache()."""
        reclaim.release_cached_blocks(self)

    # Private pools

    def create_pool(self, pool_id: tuple[int, int]) -> PrivatePool:
        """torch.cuda.MemPool(), or the pool of a new CUDA graph."""
        pool = self.graph_pools[pool_id] = PrivatePool(
            pool_id, self.small_blocks, self.large_blocks
        )
        return pool

    def begin_allocate_to_pool(self, pool: PrivatePool, *, capture: bool = False) -> None:
        """Serve requests from this pool until `end_allocate_to_pool`: use_mem_pool, or the capture
        of a CUDA graph.
        """
        pool.use_count += 1
        self.active_pool = pool
        self.capturing = capture or self.settings.release.mem_pool_is_capture

    def end_allocate_to_pool(self) -> None:
        """Undo `begin_allocate_to_pool`."""
        pool, self.active_pool, self.capturing = self.active_pool, None, False
        assert pool is not None
        self.release_pool(pool)

    def release_pool(self, pool: PrivatePool) -> None:
        """Say that one user of the pool is gone; without users its cached memory may be freed."""
        pool.use_count -= 1
        if pool.use_count == 0:
            self.graph_pools_freeable[pool.pool_id] = pool


def _expandable_size(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)
