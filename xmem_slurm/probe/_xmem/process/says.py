"""Says in a word where this process is, to whoever waits for the dry run (dryrun/live_progress.py):
nobody has to.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from _xmem.annotations import Environ

LEAST_SECONDS = 0.1
"""Between two sayings that begin with the same word: a thousand steps a second need no more."""


class Says:
    """A voice, if `environ` names a socket for it beside the traces (XMEM_SAYS); it never waits,
    and never fails.

    `spent` returns the seconds that the dry run has taken so far: they stand before the words.
    """

    def __init__(self, environ: Environ, spent: Callable[[], float]) -> None:
        self._spent = spent
        self._name, self._traces = environ.get("XMEM_SAYS"), environ.get("XMEM_TRACE_DIR", "")
        self._last, self._kind = -LEAST_SECONDS, ""

    def __call__(self, words: str, ranks: Callable[[], tuple[int, int]] | None = None) -> None:
        """Say it; `ranks` tells which rank this is, of how many."""
        moment = time.monotonic()
        kind = words.partition(" ")[0]
        if not self._name or (moment - self._last < LEAST_SECONDS and kind == self._kind):
            return
        self._last, self._kind = moment, kind
        import _socket  # a process that says nothing needs none

        rank, size = ranks() if ranks else (0, 1)
        which = "rank %d of %d: " % (rank, size) if size > 1 else ""
        try:
            # A socket's path has 107 bytes at most. What lies in our folder is nothing that the job
            # read (`files`).
            traces = os.open(self._traces, os.O_PATH)
            try:
                voice = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
                try:
                    message = "%d|%s%s" % (self._spent(), which, words)
                    voice.sendto(message.encode(), "/proc/self/fd/%d/../%s" % (traces, self._name))
                finally:
                    voice.close()
            finally:
                os.close(traces)
        except BlockingIOError:  # who waits has not read the last ones yet: the next will do
            pass
        except OSError:
            self._name = None
