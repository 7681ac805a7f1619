"""Says where what happens hangs on values that were made up: each place once, by what was assumed
there.

Note [Assumed values]: what is made up for values that are not known (Note [Plausible values]) is
marked, and the mark goes with what is computed from it. It is a doubt as soon as it may decide what
is allocated:

- a shape follows from it;
- a model's forward pass reads it;
- elsewhere, the script reads it. Of what was only counted or summed up (how many predictions are
  right) such a read is left out: that is a figure to print. One that decides a shape after all is
  not noticed.

Of values that are not known and not made up, so that a script reads zeros, one integer or truth
value is a doubt wherever it is read: a token that may end a text, a condition (in the other course
of Note [Metrics] one that the script itself asks for outside of a forward pass is true by turns).
Floating point (a loss) and whole tensors of predictions are left out: nothing is sized by them as a
rule. Within a training forward pass all of these are `values/reads`' doubt.

Made up and not marked, because all else would be no run to size: that every number is finite, and
that what torch itself checks holds: the arguments of its distributions, and by `torch.testing` what
`torch.jit.trace` (TensorBoard's `add_graph`) made of a module. A script that calls `torch.testing`
may go another way by what that says.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from _xmem import FOLDER, doubts

if TYPE_CHECKING:
    from types import FrameType, ModuleType


class AssumedMark(NamedTuple):
    """What was assumed, and where."""

    text: str
    decides: bool
    """Whether it is more than a figure to print."""
    truths: bool = False
    """Whether it is truth values as numbers: counted they are as a mask is."""
    equals: bool = False
    """Whether it says which of some values are equal, and is not known."""


_UNKNOWN = "a number that is not known, zero here (%s)"
_CONDITION = "a condition that is not known, false here (%s)"


class Assumed:
    """Says where assumed values are read, or decide a shape."""

    def __init__(self, torch: ModuleType) -> None:
        self._call, self._gradients = torch.nn.Module._call_impl.__code__, torch.is_grad_enabled
        self.looks = 0
        """How often the host has read values, or taken a shape from them."""
        self._ours = os.path.dirname(torch.__file__ or "") + os.sep, FOLDER + os.sep

    def looked(self) -> int:
        """Return `looks`."""
        return self.looks

    def mark(self, assumption: str) -> AssumedMark:
        """Return the mark of what is made up now."""
        return AssumedMark("%s (%s)" % (assumption, self._place()[0]), True)

    def mark_of_unknown(self) -> AssumedMark:
        """Return the mark of what is not known and not made up: few things have it by
        themselves.
        """
        return AssumedMark(_UNKNOWN % self._place()[0], True)

    def shaped(self, mark: AssumedMark | None) -> None:
        """A shape follows from what has this mark, or none."""
        self.looks += 1
        if mark is not None:
            doubts.note("assumed-values", mark.text)

    def read(self, mark: AssumedMark | None) -> None:
        """The host reads what has this mark, or none."""
        self.looks += 1
        if mark is not None and (mark.decides or self._place()[1]):
            doubts.note("assumed-values", mark.text)

    def unknown(self) -> None:
        """The host reads one integer or truth value that is not known."""
        self._doubt(_UNKNOWN)

    def doubt_condition(self) -> str:
        """The script itself asks for a truth value that is not known; return what is said of it."""
        return self._doubt(_CONDITION)

    def _doubt(self, text: str) -> str:
        place, forward = self._place()
        if not (forward and self._gradients()):
            doubts.note("assumed-values", text % place)
        return text % place

    def line(self) -> str | None:
        """Return the script's line at hand; None in a forward pass, and where torch itself asks."""
        torch, ours = self._ours
        if (_caller_outside(ours) or torch).startswith(torch):
            return None
        place, forward = self._place()
        return None if forward else place

    def is_checked_by_torch(self) -> bool:
        """Whether `torch.testing` is who asks, for torch itself: it warns where that does not
        hold.
        """
        torch, ours = self._ours
        testing = os.path.join(torch, "testing") + os.sep
        asking, behind = _caller_outside(ours) or "", _caller_outside((ours, testing)) or ""
        return asking.startswith(testing) and behind.startswith(torch)

    def place(self) -> str:
        """Return the script's line at hand."""
        return self._place()[0]

    def _place(self) -> tuple[str, bool]:
        """Return the script's line at hand, and whether it is in a module's forward pass."""
        line, forward = None, False
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not (line and forward):
            if frame.f_code is self._call:
                forward = True
            elif line is None and not frame.f_code.co_filename.startswith(self._ours):
                line = "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)
            frame = frame.f_back
        return line or "torch", forward


def _caller_outside(folders: str | tuple[str, ...]) -> str | None:
    """Return the file of the innermost caller that is in none of these folders."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return None if frame is None else frame.f_code.co_filename
