"""How much of its budget has a dry run spent, on a machine that others use, too?

Its CPU seconds, those of all its processes together, of the dead as of the living. Beside them each second counts in
which it did nothing for reasons of its own: it sleeps, or waits for a socket or a lock. What does not count is what the
machine makes it wait for: threads that are ready to run while others have the CPUs, and a disk. So on a quiet machine
no dry run takes longer than its budget by the clock on the wall, on a busy one it takes as long as it needs, and one
that waits for ever ends all the same.

Source of the figures: /proc/PID/stat and /proc/PID/task/TID/schedstat (proc_pid_stat(5); the kernel's
Documentation/scheduler/sched-stats.rst). A kernel that keeps no schedstat says of no thread that it was ready: then a
second on the wall is the least that each takes.
"""

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Progress:
    """Kept by process 1, to which the CPU time of every dead process comes; it begins now."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        """Of all processes so far."""
        self._idle_seconds = 0.0
        self._looked = time.monotonic()
        self._busy: dict[int, int] = {}
        """How long each thread has run or been ready to, in ns, by its number."""

    @property
    def spent_seconds(self) -> float:
        """What counts against the budget."""
        return self.cpu_seconds + self._idle_seconds

    def look(self, processes: Iterable[int]) -> None:
        """Bring the figures up to date; `processes` are the living, parents first.

        The dead are asked before the living: one that dies meanwhile is missing until the next look, and never counted
        twice.
        """
        cpu = _of_the_dead()
        busy: dict[int, int] = {}
        held_up = False
        for number in processes:
            with suppress(OSError):  # it has ended
                state, seconds = _state(number)
                cpu += seconds
                held_up = held_up or state == "D"  # waits for a disk, or a network file system
                busy |= _busy(number)
        now = time.monotonic()
        grown = sum(max(0, nanoseconds - self._busy.get(thread, 0)) for thread, nanoseconds in busy.items())
        if not held_up:
            self._idle_seconds += max(0.0, now - self._looked - max(grown * 1e-9, cpu - self.cpu_seconds))
        self.cpu_seconds, self._busy, self._looked = cpu, busy, now


def _of_the_dead() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _state(number: int) -> tuple[str, float]:
    """Return a process's state and its CPU seconds, those of the dead that it waited for included."""
    fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
    return fields[0].decode(), sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime


def _busy(number: int) -> dict[int, int]:
    ticks = {}
    for thread in Path(f"/proc/{number}/task").iterdir():
        with suppress(OSError, ValueError, IndexError):
            ran, waited = (thread / "schedstat").read_bytes().split()[:2]
            ticks[int(thread.name)] = int(ran) + int(waited)
    return ticks
