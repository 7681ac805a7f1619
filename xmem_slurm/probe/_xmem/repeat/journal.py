"""What calls that were skipped did to the allocator, each at its place among torch's own notes.

Note [Skipped calls in the trace]: of a call that is skipped torch knows nothing. In its place
stands a marker in torch's notes, a block of an odd size that is freed at once, and here what it
stands for (`repeat/events`). Whoever reads the notes (`record/history`) puts the events in the
marker's place, with addresses that no device gives out. So a trace has them as if they had been,
and levels, peaks and what is reserved follow from the replay. What the script gets instead is
allocated behind the marker: its block stands where the call's own was allocated, and not where
torch says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem.repeat.events import ADDED_TO, BLOCKS, Events, LeftBlock, freed_at_once, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from _xmem.annotations import AllocatedBlocks, HistoryEntry

MARK = 77
"""The size of a marker, in bytes: no tensor's that a script is likely to have, and its address must
be right, too."""
_ADDRESSES = 1 << 61
"""Beyond all that a device gives out; twice as high begins what `record/history` adds itself."""


class Skipped(NamedTuple):
    """One event: the address of its marker, the number of the call, what it did, and what the call
    held before.
    """

    marker: int
    number: int
    events: Events
    before: tuple[LeftBlock, ...]
    gradients: Mapping[int, int]
    """The addresses of gradients that a backward pass was given, by their numbers: those end within
    it, and not where torch says."""
    added_to: Mapping[int, int]
    """Where gradients lie that others gave, by the numbers of the sums (`Events.sums`) that stand
    in their place: the script's tensors there are the sums from then on."""
    got: dict[int, int]
    """Where blocks lie that the script got."""

    def noted(self) -> tuple[list[HistoryEntry], list[int]]:
        """Return its events, as entries of a trace, and the sites of its allocations."""
        entries, got = [], dict(self.got)
        missing = [
            block
            for block in self.events.script_blocks
            if block is not None and block.number not in got and block.number not in self.added_to
        ]
        ends = [entry for block in missing for entry in freed_at_once(block)]
        for action, block, size, stream, _ in [*self.events.entries, *ends]:
            if block <= ADDED_TO:
                at = self.added_to.get(ADDED_TO - block)
            elif block < 0:  # a gradient that it was given
                at = self.gradients.get(block)
            else:
                at = got.get(block) or address(self.number, block)
            if at is not None:
                entries.append((action, at, size, stream))
        sums = [
            block
            for block in self.events.script_blocks
            if block is not None and block.number in self.added_to
        ]
        entries += [
            ("moved_from", address(self.number, block.number), block.size, block.stream)
            for block in sums
        ]
        entries += [
            ("moved_to", self.added_to[block.number], block.size, block.stream) for block in sums
        ]
        return entries, [entry.site for entry in self.events.entries if entry.action == "alloc"]


class Journal:
    """The skipped calls of one process, on the one device that it uses."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._alloc: Any = None
        self._free: Any = None
        self._since: list[Skipped] = []  # what was skipped since torch last forgot its notes
        # number of a call: what it holds, and how many bytes that takes
        self._held: dict[int, tuple[tuple[LeftBlock, ...], int]] = {}
        self.numbers = 0
        """How many calls were skipped."""
        self.read = 0
        """How many of those since torch last forgot were read."""
        self.awaited: set[int] = set()
        """Addresses of blocks that stand in the trace before torch's own notes tell of them..."""
        self.ended: set[int] = set()
        """...and of those that end there before."""
        self.device: int | None = None
        """The number of that device, once there is one."""
        self.gives = False
        """Whether torch is asked just now for what the script gets of a skipped call."""
        self.allocated = 0
        """Bytes that skipped calls hold now."""
        self.peak = 0
        """The most that was ever allocated while a call was skipped, all in all..."""
        self.peak_since = 0
        """...and since the script last had torch forget its peaks."""
        self.totals = (0, 0, 0, 0)
        """Allocations, bytes, requested bytes and freed bytes of skipped calls, as torch's
        statistics count them; less what their markers are counted for."""

    def begin(self, torch: ModuleType, device: int) -> None:
        """Calls are skipped from now on."""
        self._torch, self.device = torch, device
        self._alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
        self._free = torch._C._cuda_cudaCachingAllocator_raw_delete

    def number(self) -> int:
        """Return the number of a new call."""
        self.numbers += 1
        return self.numbers

    def note(
        self,
        number: int,
        events: Events,
        gradients: Mapping[int, int] | None = None,
        added_to: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """A call, or its backward pass, is skipped here, or what it holds is let go of.

        Return what takes the addresses of the blocks that the script gets, by their numbers.
        """
        marker = self._alloc(MARK, self._torch._C._cuda_getCurrentRawStream(self.device))
        self._free(marker)
        before, took = self._held.pop(number, ((), 0))
        self._since.append(
            Skipped(marker, number, events, before, gradients or {}, added_to or {}, {})
        )
        if events.remaining:
            self._held[number] = events.remaining, events.held
        grown = events.held - took
        self.allocated += grown
        count, size, requested, freed = self.totals
        self.totals = (
            count + events.allocations - 1,
            size + events.freed + grown - rounded(MARK),
            requested + events.requested - MARK,
            freed + events.freed - rounded(MARK),
        )
        return self._since[-1].got

    def reached(self, level: int) -> None:
        """So many bytes were allocated in all, while a call was skipped."""
        self.peak, self.peak_since = max(self.peak, level), max(self.peak_since, level)

    def holds(self, number: int) -> tuple[LeftBlock, ...]:
        """Return what a call holds."""
        return self._held.get(number, ((), 0))[0]

    # -- for who reads torch's notes ---------------------------------------------------------------

    def at_first(self) -> AllocatedBlocks:
        """Return {address: (size, stream, False)} of what calls held when torch last forgot its
        notes.
        """
        held = {number: blocks for number, (blocks, _) in self._held.items()}
        for skipped in reversed(list(self._since)):
            held[skipped.number] = skipped.before
        return {
            address(number, block.number): (block.size, block.stream, False)
            for number, blocks in held.items()
            for block in blocks
        }

    def next(self, address: int, size: int) -> Skipped | None:
        """Return what an allocation of torch's is the marker of, if it is one: that was read,
        then.
        """
        if (
            size == MARK
            and self.read < len(self._since)
            and self._since[self.read].marker == address
        ):
            skipped = self._since[self.read]
            self.read += 1
            return skipped
        return None

    def forget(self, at_rest: bool) -> None:
        """Torch has forgotten its notes; where nobody allocates it had told of all that stands in
        the trace.
        """
        if at_rest:
            self.awaited.clear()
            self.ended.clear()
        self._since.clear()
        self.read = 0


def address(number: int, block: int) -> int:
    """Return the address of a block of a skipped call."""
    return _ADDRESSES + number * BLOCKS + block
