"""How much of its budget has a dry run spent, on a machine that others use, too?

Its CPU seconds, those of all its processes together, of the dead as of the living. Beside them each second counts in
which it did nothing for reasons of its own: it sleeps, or waits for a socket or a lock. What does not count is what the
machine makes it wait for: threads that are ready to run while others have the CPUs, and a disk. So on a quiet machine
no dry run takes longer than its budget by the clock on the wall, on a busy one it takes as long as it needs, and one
that waits for ever ends all the same.

Source of the figures: /proc/PID/stat, and schedstat, stat and wchan of /proc/PID/task/TID (proc_pid_stat(5); the
kernel's Documentation/scheduler/sched-stats.rst). A kernel that keeps no schedstat says of no thread how long it was
ready: then a second on the wall is the least that each takes, but for those in which a thread was ready at each look.

Note [What is not in the books yet]
The kernel writes down a wait for a CPU when it ends. Of a thread that is ready at a look, all of the time before may be
missing, and comes with a later look. So time in which nothing is known to have happened is in doubt for as long as some
thread is ready at each look, and what comes later pays for it. Idle is what is left of it after a look at which no
thread was ready, but for what one did that woke while we still looked at others: what it has done since then beyond the
time that has passed.

What a thread waited for goes with it. Where it was ready at a look and is gone at the next, the doubt is decided in
favor of the dry run. One that came and went between two looks has left its CPU seconds alone (a batch script starts
dozens of such programs): for each of these it has waited as long as threads that were seen did for one of theirs.
"""

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_VFORK = frozenset({"kernel_clone", "wait_for_vfork_done", "_do_fork"})
"""Where in the kernel a parent waits, uninterruptibly, until its child of a vfork has become a program (kernel/fork.c;
before 5.10 the last)."""


class Thread(NamedTuple):
    """What a look sees of one: a letter (proc_pid_stat(5)), and how long it has run, and been ready to, in seconds."""

    number: int
    state: str
    ran: float
    waited: float


class Progress:
    """Kept by process 1, to which the CPU time of every dead process comes; it begins now.

    `disks_count`: a wait for a disk, or a network file system, is idle time, too.
    """

    def __init__(self, *, disks_count: bool = False) -> None:
        self.cpu_seconds = 0.0
        """Of all processes so far."""
        self._disks_count = disks_count
        self._idle_seconds = 0.0
        self._doubtful_seconds = 0.0
        """Note [What is not in the books yet]."""
        self._looked = time.monotonic()
        self._threads: dict[int, Thread] = {}
        self._is_ready = False
        """Whether a thread was, at the last look."""
        self._ran = self._waited = 0.0
        """Of all threads that were seen."""
        self._unseen_seconds = 0.0
        """CPU seconds of threads that came and went between two looks."""

    @property
    def idle_seconds(self) -> float:
        """How long nothing was done that could have been."""
        return self._idle_seconds + (0.0 if self._is_ready else self._doubtful_seconds)

    @property
    def spent_seconds(self) -> float:
        """What counts against the budget."""
        return self.cpu_seconds + self.idle_seconds

    def look(self, processes: Iterable[int]) -> None:
        """Bring the figures up to date; `processes` are the living, parents first.

        The dead are asked before the living: one that dies meanwhile is missing until the next look, and never counted
        twice.
        """
        cpu = _of_the_dead()
        threads: dict[int, Thread] = {}
        is_ready = held_up = False
        for number in processes:
            try:
                cpu += _cpu_seconds(number)
                for thread in _threads(number):
                    threads[thread.number] = thread
                    is_ready = is_ready or thread.state == "R"
                    held_up = held_up or (thread.state == "D" and not _waits_for_a_child(number, thread.number))
            except OSError:  # it has ended since it was listed, and so it was ready to
                is_ready = True
        now = time.monotonic()
        self._account(threads, cpu, now - self._looked, held_up=held_up and not self._disks_count)
        self.cpu_seconds, self._threads, self._is_ready, self._looked = cpu, threads, is_ready, now

    def _account(self, threads: Mapping[int, Thread], cpu: float, passed: float, *, held_up: bool) -> None:
        """Say of the time since the last look how much of it was idle: Note [What is not in the books yet]."""
        grown = [self._grown(thread) for thread in threads.values()]
        self._ran += sum(ran for ran, _ in grown)
        self._waited += sum(waited for _, waited in grown)
        busy = [ran + waited for ran, waited in grown]
        if not self._is_ready:
            belated = max(0.0, max(busy, default=0.0) - passed)
            self._idle_seconds += max(0.0, self._doubtful_seconds - belated)
            self._doubtful_seconds = 0.0
        unseen = max(0.0, cpu - self._ran - self._unseen_seconds)
        self._unseen_seconds += unseen
        nothing_done = passed - sum(busy) - unseen * (1 + self._waited / (self._ran or 1.0))
        if held_up:
            nothing_done = min(0.0, nothing_done)
        self._doubtful_seconds = max(0.0, self._doubtful_seconds + nothing_done)
        if any(thread.state == "R" and number not in threads for number, thread in self._threads.items()):
            self._doubtful_seconds = 0.0

    def _grown(self, thread: Thread) -> tuple[float, float]:
        """Return for how many seconds this thread ran and waited since the last look."""
        before = self._threads.get(thread.number, _NEW)
        return max(0.0, thread.ran - before.ran), max(0.0, thread.waited - before.waited)


_NEW = Thread(0, "", 0.0, 0.0)


def _of_the_dead() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_seconds(number: int) -> float:
    """Return a process's CPU seconds, those of the dead that it waited for included."""
    return sum(map(int, _stat(Path(f"/proc/{number}"))[11:15])) / _TICKS  # utime, stime, cutime, cstime


def _threads(number: int) -> Iterator[Thread]:
    for folder in Path(f"/proc/{number}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            yield Thread(int(folder.name), _stat(folder)[0].decode(), *_run_and_waited(folder))


def _stat(folder: Path) -> list[bytes]:
    return (folder / "stat").read_bytes().rpartition(b")")[2].split()


def _run_and_waited(thread: Path) -> tuple[float, float]:
    try:
        ran, waited = (thread / "schedstat").read_bytes().split()[:2]
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) * 1e-9, int(waited) * 1e-9


def _waits_for_a_child(process: int, thread: int) -> bool:
    """Tell whether what a thread waits for is no disk but its own child, which may do so for as long as it likes."""
    try:
        return Path(f"/proc/{process}/task/{thread}/wchan").read_text().partition(".")[0] in _VFORK
    except OSError:
        return False
