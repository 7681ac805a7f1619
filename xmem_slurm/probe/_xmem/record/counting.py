"""What does one step have the GPU do? Counted by the stand-ins (device/src/cudart/work.c), in steps
that are made whole.

Of a step with many micro-batches only the first are made: a pass, from the end of one backward pass
to that of the next, whose calls were skipped counts as one with the same calls that was made.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL

    from _xmem.repeat.journal import Journal

COUNTED_STEPS = 2
"""Steps that are counted. The first one is none of them: it lacks the optimizer's state, and who
reduces gradients has no order of them yet."""
MOST_STEPS = 2 * COUNTED_STEPS
"""After so many no call is made any more for the sake of being counted: as many again where those
did not count, as nothing stood for their skipped calls."""
PASSES = 16
"""Kinds of passes that are kept, as in device/src/cudart/work.c: with and without gradients to add
to, of one model and of another."""
MOST_CALLS = 1024
"""A pass of more is like no other: who never has a backward pass has no end of calls."""


class Counting:
    """The steps of one process. What its `journal` has a number for was skipped."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._at_pass = journal.numbers  # how many were skipped when the last pass ended
        self._steps = self._counted = self._backwards = self._allocated = 0
        self._is_whole = self._fills = True
        # of the pass at hand: the kinds of its calls
        self._kinds: list[object] = []
        # by the kinds of their calls: the numbers of passes that were made whole
        self._passes: dict[tuple[object, ...], int] = {}
        self._kept: set[object] = set()  # kinds of calls in those

    def is_over(self) -> bool:
        """Whether no call has to be made any more to be counted."""
        return self._counted >= COUNTED_STEPS or self._steps >= MOST_STEPS

    def wants(self, kind: object) -> bool:
        """A call of this kind comes: say whether it is to be made even if it could be skipped.

        So it is until it was in a pass that was made whole, in steps that count.
        """
        if self.is_over():
            return False
        if len(self._kinds) < MOST_CALLS:
            self._kinds.append(kind)
        return self._steps > 0 and not (self._fills and kind in self._kept)

    def passed(self, runtime: CDLL) -> None:
        """A backward pass has ended."""
        self._backwards += 1
        if self.is_over():
            return
        kinds, self._kinds = tuple(self._kinds), []
        is_whole = self._journal.numbers == self._at_pass
        self._at_pass = self._journal.numbers
        number = self._passes.get(kinds, -1)
        can_be_kept = 0 < len(kinds) < MOST_CALLS and len(self._passes) < PASSES
        if is_whole and number < 0 and can_be_kept:
            number = self._passes[kinds] = len(self._passes)
        if is_whole and number >= 0:
            self._kept.update(kinds)
        self._is_whole = self._is_whole and (is_whole or number >= 0)
        runtime.xmem_work_pass(ctypes.c_int(number), ctypes.c_int(is_whole))

    def stepped(self, runtime: CDLL, allocated: int) -> None:
        """An optimizer has stepped; so many bytes were `allocated` so far, freed or not."""
        is_whole = self._is_whole and self._journal.numbers == self._at_pass
        self._counted += is_whole and self._steps > 0
        self._fills = self._fills and (is_whole or self._steps == 0)
        runtime.xmem_work_step(
            ctypes.c_int64(self._backwards if is_whole else -1),
            ctypes.c_int64(allocated - self._allocated),
        )
        self._allocated = allocated
        self._steps += 1
        self._backwards, self._is_whole, self._kinds = 0, True, []
        self._at_pass = self._journal.numbers
