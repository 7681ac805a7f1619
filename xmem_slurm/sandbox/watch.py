"""How much memory and how many processes does the dry run use right now?

Read by the first process of its PID namespace. All sizes are bytes.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from xmem_slurm.sandbox import mounts
from xmem_slurm.units import KIB


@dataclass(frozen=True, slots=True)
class Usage:
    """What all processes below one use: threads, and host memory that no file on disk backs; and their numbers."""

    threads: int
    memory_bytes: int
    processes: Sequence[int]


def usage(first: int, *scratch: int) -> Usage:
    """Add up everything below process `first` (its number in this /proc), and what each `scratch`, a tmpfs, holds.

    Pages that forked processes share are counted once for each, so the sum may be too high: see `proportional`. Shared
    memory is in `scratch` (/dev/shm, a mapped file) or System V's as a rule; what those hold, or what is mapped of it,
    is taken, whichever is larger.
    """
    threads = anonymous = shared = 0
    numbers = []
    for process in _descendants(first):
        numbers.append(process.number)
        threads += process.threads
        anonymous += process.anonymous + process.tables
        shared += process.shared
    return Usage(threads, anonymous + max(shared, sum(map(_held, scratch)) + _system_v()), numbers)


def proportional(first: int, *scratch: int) -> int:
    """Return the memory of `usage`, shared pages counted once: exact, and slow (the kernel walks all page tables)."""
    anonymous = shared = 0
    for process in _descendants(first):
        try:
            text = Path(f"/proc/{process.number}/smaps_rollup").read_bytes()
        except PermissionError:  # a program that may not be read
            anonymous += process.anonymous + process.tables
            continue
        except OSError:  # it has ended
            continue
        anonymous += _number(text, b"\nPss_Anon:") * KIB + process.tables
        shared += _number(text, b"\nPss_Shmem:") * KIB
    return anonymous + max(shared, sum(map(_held, scratch)) + _system_v())


def elsewhere(processes: Sequence[int]) -> int:
    """Return what file systems in memory hold that are mounted in namespaces of the processes' own, and not in ours.

    One that is mounted over cannot be asked; nor can one be that a program of the job's own serves the way to, which
    may take for ever.
    """
    known = {device for device, _ in _in_memory("self")}
    spaces: dict[str, int] = {}
    for process in processes:
        with suppress(OSError):  # it has just ended
            spaces.setdefault(str(Path(f"/proc/{process}/ns/mnt").readlink()), process)
    spaces.pop(str(Path("/proc/self/ns/mnt").readlink()), None)
    held = 0
    for process in spaces.values():
        with suppress(OSError):
            for device, point in _in_memory(process):
                if device not in known:
                    known.add(device)
                    with suppress(OSError):
                        status = os.statvfs(f"/proc/{process}/root{point}")
                        held += (status.f_blocks - status.f_bfree) * status.f_frsize
    return held


def _in_memory(process: object) -> list[tuple[str, Path]]:
    return mounts.in_memory(Path(f"/proc/{process}/mountinfo").read_text(errors="surrogateescape").splitlines())


def on_disk(folder: int, processes: Sequence[int]) -> int:
    """Return what the files below an open folder take on their disk, and those that only processes hold open."""
    total = 0
    for _, _, names, descriptor in os.fwalk(".", dir_fd=folder):
        for name in names:
            with suppress(OSError):  # it has just gone
                total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
    nameless = {}
    for process in processes:
        with suppress(OSError):  # it has just ended
            for each in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    status = each.stat()
                    nameless[status.st_dev, status.st_ino] = status.st_blocks * 512 if status.st_nlink == 0 else 0
    return total + sum(nameless.values())


@dataclass(frozen=True, slots=True)
class _Watched:
    number: int
    threads: int
    anonymous: int
    shared: int
    tables: int
    """The page tables of all that it has touched: a terabyte of nothing takes 2 GiB of them."""


def _descendants(first: int) -> Iterable[_Watched]:
    """Return every process below the first one, by one reading of /proc."""
    children: defaultdict[int, list[_Watched]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            text = (folder / "status").read_bytes()
        except OSError:  # it has ended
            continue
        sizes = [_number(text, key) * KIB for key in (b"\nRssAnon:", b"\nRssShmem:", b"\nVmPTE:")]
        children[_number(text, b"\nPPid:")].append(_Watched(int(folder.name), _number(text, b"\nThreads:"), *sizes))
    waiting = [first]
    while waiting:
        for child in children[waiting.pop()]:
            waiting.append(child.number)
            yield child


def _number(text: bytes, key: bytes) -> int:
    """Return the number after `key`, or 0: a process that is ending has no memory lines."""
    place = text.find(key)
    return 0 if place < 0 else int(text[place + len(key) :].split(None, 1)[0])


def _held(scratch: int) -> int:
    status = os.fstatvfs(scratch)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _system_v() -> int:
    """Return what shared memory segments of this IPC namespace hold, in memory or swapped out, mapped or not.

    The last two columns of /proc/sysvipc/shm (ipc/shm.c); a kernel without System V's IPC has no such file.
    """
    try:
        segments = Path("/proc/sysvipc/shm").read_bytes().splitlines()[1:]
    except FileNotFoundError:
        return 0
    return sum(int(size) for segment in segments for size in segment.split()[-2:])
