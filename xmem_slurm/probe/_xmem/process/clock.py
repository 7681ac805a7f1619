"""The clock by which a run is judged steady, or an epoch's end too long: it stands still while
others have the CPU.

On a busy login node wall time says little about a process: ten of its seconds may be one of work.
Its CPU time alone would not do, as a job that waits for its data loaders uses none. So: what the
sandbox counts of the dry run with all its processes (`process/budget`), workers that wait for a CPU
left out. Where there is no sandbox, it is wall time, less that in which the main thread was ready
to run and did not.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _xmem.process.budget import TimeLeft

_FILE = "/proc/self/schedstat"
"""CPU time and time spent waiting for a CPU of the main thread, ns (Linux,
Documentation/scheduler/sched-stats.rst)."""

LOOK_SECONDS = 0.01
"""How long an answer holds: a step that is skipped is shorter."""


class Clock:
    """Seconds since some point in the past, as `budget` (a `TimeLeft`) has them.

    Without a sandbox of wall time, where the kernel keeps no account of waiting.
    """

    def __init__(self, budget: TimeLeft) -> None:
        self._budget = budget if budget.is_counted() else None
        self._looked, self._seconds = float("-inf"), 0.0

    def now(self) -> float:
        """Return the time of now, or of a moment ago."""
        if self._budget is not None:
            return self._budget.spent()
        wall = time.monotonic()
        if wall - self._looked > LOOK_SECONDS:
            self._looked, self._seconds = wall, wall - _waited()
        return self._seconds


def _waited() -> float:
    """Return the seconds for which the main thread was ready to run and did not."""
    try:
        file = os.open(_FILE, os.O_RDONLY)
        try:
            return int(os.read(file, 128).split()[1]) * 1e-9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return 0.0
