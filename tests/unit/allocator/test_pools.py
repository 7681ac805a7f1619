"""Private pools: torch.cuda.MemPool, and the memory of captured CUDA graphs."""

from xmem_slurm.allocator.blocks import Block
from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.device import Device
from xmem_slurm.units import MIB


def taken(block: Block | None) -> Block:
    assert block is not None
    return block


def test_a_pool_keeps_its_memory_until_nobody_uses_it() -> None:
    allocator = DeviceCachingAllocator(Device(), parse("", "2.13.0"))
    pool = allocator.create_pool((0, 1))
    allocator.begin_allocate_to_pool(pool)
    inside = taken(allocator.malloc(40 * MIB))
    allocator.end_allocate_to_pool()
    allocator.free(inside)
    outside = taken(allocator.malloc(40 * MIB))
    assert outside.ptr != inside.ptr
    allocator.empty_cache()
    assert allocator.reserved_bytes == 80 * MIB
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 40 * MIB
    assert not allocator.graph_pools


def test_a_pool_with_live_memory_outlives_its_last_user() -> None:
    allocator = DeviceCachingAllocator(Device(), parse("expandable_segments:True", "2.13.0"))
    pool = allocator.create_pool((1, 0))
    allocator.begin_allocate_to_pool(pool, capture=True)
    block = taken(allocator.malloc(40 * MIB))
    allocator.end_allocate_to_pool()
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_nothing_is_released_while_a_graph_is_captured() -> None:
    allocator = DeviceCachingAllocator(Device(64 * MIB), parse("", "2.13.0"))
    cached = taken(allocator.malloc(40 * MIB))
    allocator.free(cached)
    pool = allocator.create_pool((1, 0))
    allocator.begin_allocate_to_pool(pool, capture=True)
    assert allocator.malloc(40 * MIB) is None
    allocator.end_allocate_to_pool()
    allocator.begin_allocate_to_pool(pool)
    assert allocator.malloc(40 * MIB) is not None
