"""The clock by which a run is judged steady, or an epoch's end too long: it stands still while others have the CPU.

On a busy login node wall time says little about a process: ten of its seconds may be one of work. Its CPU time alone
would not do, as a job that waits for its data loaders uses none. So: wall time, less that in which the main thread was
ready to run and did not. What a dry run may take in all is not of this module (`process/budget`).
"""

import os
import time

_FILE = "/proc/self/schedstat"
"""CPU time and time spent waiting for a CPU of the main thread, ns (Linux, Documentation/scheduler/sched-stats.rst)."""


def now():
    """Return seconds since some point in the past; of wall time, where the kernel keeps no such account."""
    try:
        file = os.open(_FILE, os.O_RDONLY)
        try:
            waited = int(os.read(file, 128).split()[1])
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        waited = 0
    return time.monotonic() - waited * 1e-9
