"""How much of its budget has a dry run spent, on a machine that others use, too?

Its CPU seconds, those of all its processes together, of the dead as of the living. Beside them each
second counts in which it did nothing for reasons of its own: it sleeps, or waits for a socket or a
lock. What does not count is what the machine makes it wait for: threads that are ready to run while
others have the CPUs, and a disk; nor what is made for it outside meanwhile. So on a quiet machine
no dry run takes longer than its budget by the clock on the wall, on a busy one it takes as long as
it needs, and one that waits for ever ends all the same. An uninterruptible wait alone is not for a
disk: a parent's until the child of its vfork has become a program is one, and so are others that a
program can have as long as it likes. It is in a call on files, or in none (a page that is read from
one), and does not last for ever.

Source of the figures: /proc/PID/stat, and schedstat, stat and syscall of /proc/PID/task/TID
(proc_pid_stat(5), proc_pid_syscall(5); the kernel's Documentation/scheduler/sched-stats.rst). A
kernel that keeps no schedstat says of no thread how long it was ready: then a second on the wall is
the least that each takes, but for those in which a thread was ready at each look.

Note [What is not in the books yet] The kernel writes down a wait for a CPU when it ends. Of a
thread that is ready at a look, all of the time before may be missing, and comes with a later look.
So time in which nothing is known to have happened is in doubt for as long as some thread is ready
at each look, and what comes later pays for it. Idle is what is left of it after a look at which no
thread was ready, but for what one did that woke while we still looked at others: what it has done
since then beyond the time that has passed.

What a thread waited for goes with it. Where it was ready at a look and is gone at the next, the
doubt is decided in favor of the dry run. One that came and went between two looks has left its CPU
seconds alone (a batch script starts dozens of such programs): for each of these it has waited as
long as threads that were seen did for one of theirs.
"""

import os
import platform
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
DISK_SECONDS = 15.0
"""How long a disk, or a network file system, may take for one answer."""


def _numbers(text: str) -> frozenset[int]:
    ranges = (part.partition("-") for part in text.split())
    return frozenset(
        number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)
    )


_ON_FILES = {
    "x86_64": _numbers(
        "0-6 8-9 11 17-21 25-28 40 59 74-94 132-133 137-138 162 187-199 209 217 221 257-269 275 "
        "277 280 285 295-296 "
        "306 316 322 326-328 332 437 439"
    ),
    "aarch64": _numbers(
        "2 5-17 33-38 43-50 52-57 61-71 76 78-84 88 213 215-216 221-223 227 232-233 267 276 281 "
        "285-287 291 437 439"
    ),
}
"""The system calls that may wait for a disk (arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h, v6.18)."""


class Thread(NamedTuple):
    """What a look sees of one: a letter (proc_pid_stat(5)), and how long it has run, and been ready
    to, in seconds.
    """

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
        self._last_ran: dict[int, tuple[float, float]] = {}
        """Of a thread that waits for a disk: how long it had run, and when that was first seen."""
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

    def look(self, processes: Iterable[int], *, held_up: bool = False) -> None:
        """Bring the figures up to date; `processes` are the living, parents first. Where they are
        `held_up`, by what is made for them outside, nothing that they do not do counts.

        The dead are asked before the living: one that dies meanwhile is missing until the next
        look, and never counted twice.
        """
        cpu = _of_the_dead()
        threads: dict[int, Thread] = {}
        is_ready = on_a_disk = False
        looked = time.monotonic()
        for number in processes:
            try:
                cpu += _cpu_seconds(number)
                for thread in _threads(number):
                    threads[thread.number] = thread
                    is_ready = is_ready or thread.state == "R"
                    on_a_disk = (
                        thread.state == "D" and self._waits_for_a_disk(number, thread, looked)
                    ) or on_a_disk
            except OSError:  # it has ended since it was listed, and so it was ready to
                is_ready = True
        self._last_ran = {number: at for number, at in self._last_ran.items() if number in threads}
        now = time.monotonic()
        held_up = held_up or (on_a_disk and not self._disks_count)
        self._account(threads, cpu, now - self._looked, held_up=held_up)
        self.cpu_seconds, self._threads, self._is_ready, self._looked = cpu, threads, is_ready, now

    def _waits_for_a_disk(self, process: int, thread: Thread, now: float) -> bool:
        ran, since = self._last_ran.get(thread.number, (-1.0, now))
        if ran != thread.ran:
            since = now
        self._last_ran[thread.number] = thread.ran, since
        return now - since < DISK_SECONDS and _is_on_files(process, thread.number)

    def _account(
        self, threads: Mapping[int, Thread], cpu: float, passed: float, *, held_up: bool
    ) -> None:
        """Say of the time since the last look how much of it was idle: Note [What is not in the
        books yet].
        """
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
        if any(
            thread.state == "R" and number not in threads
            for number, thread in self._threads.items()
        ):
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
    # utime, stime, cutime, cstime
    return sum(map(int, _stat(Path(f"/proc/{number}"))[11:15])) / _TICKS


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


def _is_on_files(process: int, thread: int) -> bool:
    """Tell whether what a thread waits in may be a wait for a disk; where it cannot be known, it is
    not.
    """
    file_calls = _ON_FILES.get(platform.machine())
    try:
        call = Path(f"/proc/{process}/task/{thread}/syscall").read_bytes().split()[0]
    except (OSError, IndexError):
        return False
    return call in (b"running", b"-1") or file_calls is None or int(call) in file_calls
