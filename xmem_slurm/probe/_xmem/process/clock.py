"""The clock by which a run is judged steady, or an epoch's end too long: it stands still while others have the CPU.

On a busy login node wall time says little about a process: ten of its seconds may be one of work. Its CPU time alone
would not do, as a job that waits for its data loaders uses none. So: wall time, less that in which the main thread was
ready to run and did not. What a dry run may take in all is not of this module (`process/budget`).
"""

import os
import time

_FILE = "/proc/self/schedstat"
"""CPU time and time spent waiting for a CPU of the main thread, ns (Linux, Documentation/scheduler/sched-stats.rst)."""

LOOK_SECONDS = 0.01
"""How long an answer holds: a step that is skipped is shorter."""


class Clock:
    """Seconds since some point in the past; of wall time, where the kernel keeps no such account."""

    def __init__(self):
        self._looked, self._found = float("-inf"), 0.0

    def now(self):
        """Return the time of now, or of a moment ago."""
        wall = time.monotonic()
        if wall - self._looked > LOOK_SECONDS:
            self._looked, self._found = wall, wall - _waited()
        return self._found


def _waited():
    """Return the seconds for which the main thread was ready to run and did not."""
    try:
        file = os.open(_FILE, os.O_RDONLY)
        try:
            return int(os.read(file, 128).split()[1]) * 1e-9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return 0.0
