"""What is a Block, and in what order does the allocator look at the free ones?

Block, BlockPool and PrivatePool carry the names and fields of c10/cuda/CUDACachingAllocator.cpp
(2.4 to 2.15). Upstream keeps the free blocks of a pool in one set ordered by (stream, size,
address). Every search stays inside one stream, so here a pool has one FreeList per stream, ordered
by (size, address): a sorted list of integers, searched with bisect.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

ADDRESS_BITS = 64
"""A free block's place in the order is the integer `size << ADDRESS_BITS | address`."""
_ADDRESS = attrgetter("ptr")


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of a segment: handed out, waiting for events, cached (free), or not backed by memory
    (`mapped` false).

    Sizes and addresses are bytes. `prev` and `next` are the neighbours in the same segment.
    """

    free_list: "FreeList"
    ptr: int
    size: int
    prev: "Block | None" = None
    next: "Block | None" = None
    allocated: bool = False
    cached: bool = False
    """In the pool's set of free blocks (upstream: found in `pool.blocks`)."""
    mapped: bool = True
    requested_size: int = 0
    key: int = 0
    serial: int = 0
    """How many blocks had been made before it; kept where the release orders equal blocks by it."""
    event_count: int = 0
    stream_uses: tuple[int, ...] = ()
    gc_count_base: int = 0
    expandable_segment: object = None

    @property
    def is_split(self) -> bool:
        """Whether it shares its segment with other blocks."""
        return self.prev is not None or self.next is not None

    @property
    def gc_count(self) -> int:
        """Its age: searches of the pool since it became free (counted only when garbage collection
        is on).
        """
        return self.free_list.pool.get_free_blocks_call_count - self.gc_count_base

    def splice(self, before: "Block | None", after: "Block | None") -> None:
        """Stand between two neighbours."""
        if before is not None:
            before.next = self
        self.prev = before
        if after is not None:
            after.prev = self
        self.next = after


@dataclass(slots=True, eq=False, repr=False)
class FreeList:
    """The free blocks of one pool and stream, smallest first, lowest address first among equals."""

    pool: "BlockPool"
    stream: int
    keys: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    unmapped: list[Block] = field(default_factory=list)
    """Address ranges of expandable segments without memory behind them, lowest address first."""

    def insert(self, block: Block) -> None:
        """Make a block free (`BlockPool::insert_into_blocks`)."""
        block.cached = True
        block.gc_count_base = self.pool.get_free_blocks_call_count
        key = block.key = block.size << ADDRESS_BITS | (block.serial or block.ptr)
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        """Take a free block out."""
        block.cached = False
        index = bisect_left(self.keys, block.key)
        del self.keys[index]
        del self.blocks[index]

    def insert_unmapped(self, block: Block) -> None:
        """Add an address range, by address."""
        index = bisect_left(self.unmapped, block.ptr, key=_ADDRESS)
        self.unmapped.insert(index, block)

    def remove_unmapped(self, block: Block) -> None:
        """Take an address range out."""
        del self.unmapped[bisect_left(self.unmapped, block.ptr, key=_ADDRESS)]


@dataclass(slots=True)
class PoolStats:
    """Bytes of the small or the large half of all pools together (upstream: StatType SMALL_POOL,
    LARGE_POOL).
    """

    allocated_bytes: int = 0
    allocated_bytes_peak: int = 0
    reserved_bytes: int = 0
    reserved_bytes_peak: int = 0


@dataclass(slots=True, eq=False, repr=False)
class BlockPool:
    """The small (requests up to 1 MiB) or the large half of the default pool or of a private
    one.
    """

    stats: PoolStats
    is_small: bool
    split_from: int
    """A free block is split when it exceeds the request by at least this many bytes
    (`should_split`)."""
    owner: "PrivatePool | None" = None
    free_lists: dict[int, FreeList] = field(default_factory=dict)
    """By stream."""
    get_free_blocks_call_count: int = 0

    def free_list(self, stream: int) -> FreeList:
        """Return the free blocks of a stream."""
        blocks = self.free_lists.get(stream)
        if blocks is None:
            blocks = self.free_lists[stream] = FreeList(self, stream)
            self.free_lists = dict(sorted(self.free_lists.items()))
        return blocks

    def __iter__(self) -> Iterator[Block]:
        """Yield the free blocks, in upstream's order."""
        for free_list in self.free_lists.values():
            yield from free_list.blocks


class PrivatePool:
    """A torch.cuda.MemPool, or the memory of captured CUDA graphs."""

    __slots__ = ("large_blocks", "malloc_count", "pool_id", "small_blocks", "use_count")

    def __init__(self, pool_id: tuple[int, int], small: BlockPool, large: BlockPool) -> None:
        """Make an empty pool with the rules and the statistics of the default pool's two halves."""
        self.pool_id = pool_id
        self.use_count = 1
        self.malloc_count = 0
        """Segments not returned yet; a pool that nobody uses is forgotten when it reaches 0
        (`cudaMalloc_count`)."""
        self.small_blocks = BlockPool(
            small.stats, is_small=True, split_from=small.split_from, owner=self
        )
        self.large_blocks = BlockPool(
            large.stats, is_small=False, split_from=large.split_from, owner=self
        )
