"""When are calls made that could be skipped, to see whether they still do what is known of them?

Note [Checks]: a kind holds all that is known to change what a call asks for, and no list of such
things is complete. So from time to time an interval of the script, a step or a batch, is made as it
is, calls and steps of optimizers, and compared with what is known of these. A change that lasts is
noticed so, at the latest after a quarter more of all intervals so far, and soon where another loop
over data begins.
"""

from __future__ import annotations

EACH, PART = 16, 4
"""One is made after so many others, or after a quarter of all so far where that is more."""
FEW = 8
"""Where another loop over data, or an evaluation, has begun since, one is made after so many."""


class Checks:
    """Those of one process; `is_checking` is whether the interval at hand is made as it is."""

    _interval: int | None
    _last: int
    _loops: int

    def __init__(self) -> None:
        self.is_checking = False
        self._interval, self._last, self._loops = None, 0, 0

    def come_to(self, interval: int, loops: int) -> None:
        """The script is in this interval, by its number, and has begun so many loops over data."""
        if interval != self._interval:
            self._interval, since = interval, interval - self._last
            self.is_checking = since > max(EACH, interval // PART) or (
                loops != self._loops and since > FEW
            )
            if self.is_checking:
                self._last, self._loops = interval, loops
