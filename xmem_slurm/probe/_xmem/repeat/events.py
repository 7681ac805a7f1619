"""What a call did to the allocator: its allocations and frees in order, with numbers for addresses.

Note [Events of a call]: a call is recorded for real, twice; torch's own notes of it, between two
positions, are what stands for later ones. Blocks are numbered in the order of their allocation,
those of the backward pass after those of the forward pass. A free that waits for another stream is
completed where it was, or at the end of the call. What was allocated before the call is
none of them: torch tells of its end itself. Tensors that the script gets are real ones, allocated
behind the events, which have their addresses in the place of the recorded ones' (`script_blocks`).
What else is new and lives on, the gradients that a backward pass hands on, is freed at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence, Set

    from _xmem.annotations import ServedNote

BLOCKS = 1 << 20
"""More blocks than a call can have: what the addresses of two calls differ by, at the least."""
GRADIENT = -1
"""The number of the block of the gradient of the first tensor that a call gave, which torch has
made and the backward pass gives back; that of the next one is one less, and so on."""
ADDED_TO = -BLOCKS
"""The number of the gradient that others gave, in whose place the sum of it and the call's stands,
less that of the sum's block (`Events.sums`)."""
NOT_YET = 1 << 62
"""The end of a region that has none yet."""
UNIT = 512
"""torch rounds what is asked for up to this, at the least (kMinBlockSize,
c10/core/AllocatorConfig.h)."""


class Entry(NamedTuple):
    """One event: `action` as torch's notes have it; `block` is a number; `size` in bytes, as asked
    for.
    """

    action: str
    block: int
    size: int
    stream: int
    site: int


class LeftBlock(NamedTuple):
    """A block that is allocated at the end."""

    number: int
    size: int
    stream: int


class Events(NamedTuple):
    """The events of a call, and the blocks that they leave.

    `peak` is how far they go above the level before the call; `allocations`, `requested` and
    `freed` bytes are those of blocks that the script does not get; `blocks` is how many there were
    so far. `script_blocks` are the blocks of what the script gets, None where that is none of them;
    `held` is how many bytes those take that are left; `gives_back` has the numbers (`GRADIENT`) of
    the gradients it was given that end within a backward pass. `sums` are blocks of the script's,
    too: new memory for the sum of a gradient and what others gave, which ends then (`ADDED_TO`).
    """

    entries: tuple[Entry, ...]
    remaining: tuple[LeftBlock, ...]
    script_blocks: tuple[LeftBlock | None, ...]
    peak: int
    allocations: int
    requested: int
    freed: int
    blocks: int
    held: int
    gives_back: frozenset[int]
    sums: frozenset[int] = frozenset()


class Region:
    """Where torch's notes of a call are: positions are counts of allocations and frees that a
    device had served.
    """

    def __init__(self, begin: int, end: int = NOT_YET) -> None:
        self.begin, self.end = begin, end

    def of(self, notes: list[ServedNote], first: int) -> list[ServedNote] | None:
        """Return what it has of notes, which begin at position `first`; None where they do not have
        all of it.
        """
        if self.begin < first or self.end > first + len(notes):
            return None
        return notes[self.begin - first : self.end - first]


def events(
    notes: Sequence[ServedNote],
    held: dict[int, LeftBlock],
    script_addresses: Sequence[int | None],
    blocks: int,
    *,
    gradients: Mapping[int, int] | None = None,
    added_to: Container[int] = (),
    kept: Mapping[int, int] | None = None,
    ends: bool = False,
) -> tuple[Events, dict[int, LeftBlock]]:
    """Return (events, {address: `LeftBlock`} of what is allocated at their end).

    `held` are blocks of the call that are allocated before, by address; `script_addresses` the
    addresses of what the script gets. `blocks` is how many were numbered before; `gradients` has
    the numbers of those that a backward pass is given, by their addresses; with `ends` all that is
    new beside is freed at the end.

    `added_to` are addresses of gradients that may be added to: torch takes new memory for the sum
    and then frees the gradient. A sum that does not last is freed in its place, which is as large.
    Of those that torch keeps to add others to them, `kept` has the sizes in bytes, by their places
    among `script_addresses`: where what the script gets in the end is another block.
    """
    held, first = dict(held), blocks
    entries: list[Entry] = []
    waiting: dict[int, list[Entry]] = {}  # frees to complete, by the place after which they are
    level = peak = allocations = requested = freed = 0
    not_yet, given_back, latest = dict(gradients or {}), set(), 0
    lasting = _lasting(notes, script_addresses) if added_to else set()
    sums: set[int] = set()
    for place, (action, address, size, stream, noted) in enumerate(notes):
        entries += waiting.pop(place - 1, ())
        if action == "alloc":
            held[address] = LeftBlock(blocks, size, stream)
            entries.append(Entry("alloc", blocks, size, stream, noted))
            blocks += 1
            level += rounded(size)
            peak = max(peak, level)
            allocations, requested, latest = allocations + 1, requested + size, address
            continue
        own = latest if address in added_to and address not in held else address
        latest = 0
        if own in held and held[own].size == size:
            gone = held[own]
            if own != address and place - 1 in lasting:
                sums.add(gone.number)
                gone = gone._replace(number=ADDED_TO - gone.number)
            else:
                del held[own]
            asked, completed = freed_at_once(gone)
            entries.append(asked)
            waiting.setdefault(place + noted, []).append(completed)
            level -= rounded(gone.size)
            freed += rounded(gone.size)
        elif address in not_yet:
            number = not_yet.pop(address)
            entries += freed_at_once(LeftBlock(number, size, stream))
            given_back.add(number)
    entries += [entry for place in sorted(waiting) for entry in waiting[place]]
    got = [
        address if address in held and held[address].number >= first else None
        for address in script_addresses
    ]
    for place, size in (kept or {}).items():
        if got[place] is None:
            got[place] = _kept(held, first, size, got)
    theirs = tuple([None if address is None else held.pop(address, None) for address in got])
    over = [address for address, block in held.items() if ends and block.number >= first]
    ended = [held.pop(address) for address in over]
    entries += [entry for block in ended for entry in freed_at_once(block)]
    real = [block for block in (*theirs, *ended) if block is not None and block.number not in sums]
    allocations, requested = allocations - len(real), requested - sum(block.size for block in real)
    remaining = tuple(sorted(held.values()))
    return Events(
        tuple(entries),
        remaining,
        theirs,
        peak,
        allocations,
        requested,
        freed,
        blocks,
        taken_bytes(remaining),
        frozenset(given_back),
        frozenset(sums),
    ), held


def _kept(
    held: Mapping[int, LeftBlock], first: int, size: int, taken: Container[int | None]
) -> int | None:
    """Return the address of a gradient of this size that was left for others to be added to: the
    latest, as gradients come in the reverse order of the parameters.
    """
    left = [
        (block.number, address)
        for address, block in held.items()
        if block.number >= first and block.size == size and address not in taken
    ]
    return max(left)[1] if left else None


def _lasting(notes: Sequence[ServedNote], addresses: Sequence[int | None]) -> set[int]:
    """Return which of these notes are allocations that lie at these addresses at their end."""
    wanted, lasting = set(addresses), {}
    for place, (action, address, *_) in enumerate(notes):
        if action == "alloc" and address in wanted:
            lasting[address] = place
        else:
            lasting.pop(address, None)
    return set(lasting.values())


def freeing(gone: Sequence[LeftBlock], remaining: Sequence[LeftBlock] = ()) -> Events:
    """Return the events of giving blocks back, after which others are left."""
    entries = tuple(entry for block in gone for entry in freed_at_once(block))
    left = tuple(remaining)
    return Events(entries, left, (), 0, 0, 0, taken_bytes(gone), 0, taken_bytes(left), frozenset())


def adding(
    found: Events, gradients: Iterable[LeftBlock | None], in_new_memory: Container[int] = ()
) -> Events:
    """Return the events of a backward pass that gives these gradients, where each is added to
    another one at once: it ends after what is allocated next, by which its node has ended.

    `in_new_memory` are the numbers of those for whose sum torch takes new memory, as soon as their
    node has ended, and which then are `Events.sums`.
    """
    added = {block.number: block for block in gradients if block is not None}
    summed = [block for number, block in added.items() if number in in_new_memory]
    sums = {
        block.number: block._replace(number=found.blocks + place)
        for place, block in enumerate(summed)
    }
    entries: list[Entry] = []
    to_sum: list[Entry] = []  # of which the node has not ended
    ending: list[LeftBlock] = []
    for entry in found.entries:
        if entry.action == "alloc":
            entries += _summing(to_sum, sums)
            to_sum = [entry] if entry.block in sums else []
        entries.append(entry)
        if entry.action == "alloc":
            entries += [end for block in ending for end in freed_at_once(block)]
            ends = entry.block in added and entry.block not in sums
            ending = [added[entry.block]] if ends else []
    entries += _summing(to_sum, sums)
    entries += [end for block in ending for end in freed_at_once(block)]
    theirs = [
        block and (sums.get(block.number) if block.number in added else block)
        for block in found.script_blocks
    ]
    ended = [*added.values(), *sums.values()]
    return found._replace(
        entries=tuple(entries),
        script_blocks=tuple(theirs),
        peak=_peak(entries),
        allocations=found.allocations + len(ended),
        requested=found.requested + sum(block.size for block in ended),
        freed=found.freed + taken_bytes(ended),
        blocks=found.blocks + len(sums),
        sums=frozenset(block.number for block in sums.values()),
    )


def without_sums(found: Events, numbers: Set[int]) -> Events:
    """Return the events where nobody knows what these sums are added to: each is freed in the place
    of that, which is as large, and stands no more.
    """
    if not numbers:
        return found
    ends = {ADDED_TO - number: number for number in numbers}
    return found._replace(
        entries=tuple(
            entry._replace(block=ends.get(entry.block, entry.block)) for entry in found.entries
        ),
        script_blocks=tuple(
            None if block is None or block.number in numbers else block
            for block in found.script_blocks
        ),
        sums=found.sums - numbers,
    )


def _summing(gradients: Iterable[Entry], sums: Mapping[int, LeftBlock]) -> list[Entry]:
    """Return the events of adding these gradients to others in new memory."""
    entries = []
    for gradient in gradients:
        entries.append(gradient._replace(block=sums[gradient.block].number))
        for gone in (ADDED_TO - sums[gradient.block].number, gradient.block):
            entries += freed_at_once(LeftBlock(gone, gradient.size, gradient.stream))
    return entries


def _peak(entries: Iterable[Entry]) -> int:
    """Return how far these events go above the level before them."""
    level = peak = 0
    for action, block, size, *_ in entries:
        if action == "alloc":
            level += rounded(size)
            peak = max(peak, level)
        elif action == "free_requested" and (block >= 0 or block <= ADDED_TO):
            level -= rounded(size)
    return peak


def alike(one: Events, another: Events) -> bool:
    """Whether the events of two calls are the same, wherever they were asked for.

    What is freed at once is so in an order that means nothing: torch keeps it in tables that are
    hashed by address.
    """
    if one.script_blocks != another.script_blocks:
        return False
    return one.entries == another.entries or _in_order(one.entries) == _in_order(another.entries)


def rounded(size: int) -> int:
    """Return the bytes that a block of so many takes."""
    return -(-size // UNIT) * UNIT


def taken_bytes(blocks: Iterable[LeftBlock]) -> int:
    """Return the bytes that all of these blocks take."""
    return sum([rounded(block.size) for block in blocks])


def freed_at_once(block: LeftBlock) -> list[Entry]:
    """Return the events of freeing a block."""
    return [
        Entry(action, block.number, block.size, block.stream, 0)
        for action in ("free_requested", "free_completed")
    ]


def _in_order(entries: Iterable[Entry]) -> list[tuple[Any, ...]]:
    """Return what is compared of entries, frees that follow each other in one order."""
    compared: list[tuple[Any, ...]] = []
    frees: list[tuple[int, str]] = []
    for action, block, size, stream, _ in entries:
        if action == "alloc":
            compared += sorted(frees)
            frees.clear()
            compared.append((block, size, stream))
        else:
            frees.append((block, action))
    return compared + sorted(frees)
