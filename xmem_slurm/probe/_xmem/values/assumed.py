"""Says where what happens hangs on values that were made up: each place once, by what was assumed there.

Note [Assumed values]: what is made up for values that are not known (Note [Plausible values]) is marked, and the mark
goes with what is computed from it. It is a doubt as soon as it may decide what is allocated:

- a shape follows from it;
- a model's forward pass reads it;
- elsewhere, the script reads it. Of what was only counted or summed up (how many predictions are right) such a read is
  left out: that is a figure to print. One that decides a shape after all is not noticed.

Of values that are not known and not made up one integer is a doubt wherever it is read: zero here,
and it may be a token that ends a text. So is a truth value, a condition, unless both answers were
given at that place, by turns (Note [Metrics]); in a forward pass, and where torch itself asks, it is
always false. Floating point (a loss) and whole tensors of predictions are left out: nothing is sized
by them as a rule. Within a training forward pass all of these are `values/reads`' doubt.

Made up and not marked, because all else would be no run to size: that every number is finite, and that what torch
checks of the arguments of its distributions holds.
"""

import collections
import os
import sys

from _xmem import FOLDER, doubts

Mark = collections.namedtuple("Mark", "text decides truths equals", defaults=(False, False))
"""What was assumed and where; whether it is more than a figure to print; whether it is truth values
as numbers: counted they are as a mask is; whether it says which of some values are equal, which is not known either."""
_UNKNOWN = "a number that is not known, zero here (%s)"
ANSWERS = 2
"""So often either answer has to be given at a place for both ways to have been gone."""


class Assumed:
    """Says where assumed values are read, or decide a shape."""

    def __init__(self, torch):
        self._call, self._gradients = torch.nn.Module._call_impl.__code__, torch.is_grad_enabled
        self.looks = 0
        """How often the host has read values, or taken a shape from them."""
        self._answers = {}  # by place, how often a truth value that is not known was false, and true
        self._ours = os.path.dirname(torch.__file__) + os.sep, FOLDER + os.sep

    def looked(self):
        """Return `looks`."""
        return self.looks

    def mark(self, what):
        """Return the mark of what is made up now."""
        return Mark("%s (%s)" % (what, self._place()[0]), True)

    def mark_of_unknown(self):
        """Return the mark of what is not known and not made up: few things have it by themselves."""
        return Mark(_UNKNOWN % self._place()[0], True)

    def shaped(self, mark):
        """A shape follows from what has this mark, or none."""
        self.looks += 1
        if mark is not None:
            doubts.note("assumed-values", mark.text)

    def read(self, mark):
        """The host reads what has this mark, or none."""
        self.looks += 1
        if mark is not None and (mark.decides or self._place()[1]):
            doubts.note("assumed-values", mark.text)

    def unknown(self):
        """The host reads one integer that is not known."""
        place, forward = self._place()
        if not (forward and self._gradients()):
            doubts.note("assumed-values", _UNKNOWN % place)

    def answered(self, truth):
        """The host reads one truth value that is not known: return it, which is `truth` where it may be."""
        place, forward = self._place()
        if forward or self._asks_itself():
            self.unknown()
            return False
        self._answers.setdefault(place, [0, 0])[truth] += 1
        return truth

    def doubt(self, note):
        """Say where a truth value was read that was not taken both ways."""
        for place, given in list(self._answers.items()):
            if min(given) < ANSWERS:
                note("assumed-values", _UNKNOWN % place, sum(given))

    def is_in_forward(self):
        """Whether a module's forward pass is under way."""
        return self._place()[1]

    def _asks_itself(self):
        """Whether it is torch that reads, and not the script."""
        torch, ours = self._ours
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(ours):
            frame = frame.f_back
        return frame is None or frame.f_code.co_filename.startswith(torch)

    def _place(self):
        """Return the script's line at hand, and whether it is in a module's forward pass."""
        found, forward, frame = None, False, sys._getframe(2)
        while frame is not None and not (found and forward):
            if frame.f_code is self._call:
                forward = True
            elif found is None and not frame.f_code.co_filename.startswith(self._ours):
                found = "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)
            frame = frame.f_back
        return found or "torch", forward
