"""How much of its budget has the dry run left?

Two limits, both of the whole dry run with all its processes: seconds that its sandbox counts, CPU
time above all (sandbox/progress.py), and a moment on the clock on the wall, far behind. The sandbox
writes what was spent so far into a file beside the traces. Without a sandbox there is the wall
alone, or no limit.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _xmem.annotations import Environ

_METER = "spent"
"""The file in which the sandbox says how many seconds are spent: one double."""
LOOK_SECONDS = 0.1
"""How long an answer holds: it is asked for at each step."""


class TimeLeft:
    """The limits that `environ` tells of: XMEM_CPU_SECONDS, and XMEM_DEADLINE, a time.monotonic()
    value.
    """

    def __init__(self, environ: Environ) -> None:
        self._deadline = float(environ.get("XMEM_DEADLINE", "inf"))
        self._seconds = float(environ.get("XMEM_CPU_SECONDS", "inf"))
        self._began = time.monotonic()
        self._read, self._last = 0.0, float("-inf")
        self._meter = os.path.join(environ.get("XMEM_TRACE_DIR", ""), _METER)

    def is_limited(self) -> bool:
        """Whether there is an end: without, a process runs to its own."""
        return self._deadline != float("inf")

    def is_counted(self) -> bool:
        """Whether a sandbox counts what is spent."""
        return os.path.exists(self._meter)

    def seconds_left(self) -> float:
        """Return the seconds that are left, of whichever limit is nearer."""
        return min(self._deadline - time.monotonic(), self._seconds - self.spent())

    def share(self) -> float:
        """Return which part of it is spent, of whichever limit is nearer."""
        moment = time.monotonic()
        return max(
            self.spent() / self._seconds,
            (moment - self._began) / max(self._deadline - self._began, 1e-9),
        )

    def own_seconds(self) -> float:
        """Return seconds since some point in the past, as what this process does is counted."""
        return time.monotonic() if self._seconds == float("inf") else time.process_time()

    def spent(self) -> float:
        """Return the seconds of the dry run that its sandbox has counted so far; 0 where it has
        said nothing yet.
        """
        moment = time.monotonic()
        if moment - self._last > LOOK_SECONDS:
            self._last = moment
            with (
                contextlib.suppress(OSError, struct.error),
                open(self._meter, "rb") as meter,
            ):  # no sandbox, or no word yet
                self._read = struct.unpack("d", meter.read(8))[0]
        return self._read
