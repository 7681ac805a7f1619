"""How much memory and how many processes does the dry run use right now?

Read by the first process of its PID namespace. All sizes are bytes.
"""

import mmap
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from xmem_slurm.sandbox import mounts
from xmem_slurm.units import KIB

_MEMORY = b"\nRssAnon:"
_INODE_BYTES = 1024
"""What the kernel keeps of a file in a tmpfs, beside its pages."""
_OPEN_FILE_BYTES = 2 * mmap.PAGESIZE
"""What an open file can hold at most that is no socket: a pipe, beyond the megabytes that all of a
user's may."""
_FILTER_BYTES = 256 * KIB
"""A filter of system calls, of as many steps as it may have."""
_MAPPING_BYTES = 256
_ANONYMOUS = b"/dev/zero (deleted)"
"""Shared memory without a name, as it stands in /proc/PID/maps."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What all processes below one use: threads, and host memory that no file on disk backs; and
    their numbers.

    `shared_bytes` of the memory are in file systems in memory. `open_files` is how many they have
    room for, `filters` how many filters of system calls they have of their own.
    """

    threads: int
    memory_bytes: int
    processes: Sequence[int]
    shared_bytes: int
    open_files: int
    filters: int


def usage(first: int, *scratch: int) -> Usage:
    """Add up everything below process `first` (its number in this /proc), and what each `scratch`,
    a tmpfs, holds.

    Pages that forked processes share are counted once for each, so the sum may be too high: see
    `proportional`. Shared memory is in `scratch` (/dev/shm, a mapped file) or System V's as a rule;
    what those hold, or what is mapped of it, is taken, whichever is larger.
    """
    threads = anonymous = shared = open_files = filters = 0
    numbers = []
    for process in _descendants(first):
        numbers.append(process.number)
        threads += process.threads
        anonymous += process.anonymous + process.fixed
        shared += process.shared
        open_files += process.open_files
        filters += process.filters
    shared = max(shared, sum(map(_held, scratch)) + _system_v())
    return Usage(threads, anonymous + shared, numbers, shared, open_files, filters)


def proportional(first: int, *scratch: int) -> int:
    """Return the memory of `usage`, shared pages counted once: exact, and slow (the kernel walks
    all page tables).
    """
    anonymous = shared = 0
    for process in _descendants(first):
        try:
            text = (process.place / "smaps_rollup").read_bytes()
        except PermissionError:  # a program that may not be read
            anonymous += process.anonymous + process.fixed
            continue
        except OSError:  # it has ended
            continue
        anonymous += (
            _number(text, b"\nPss_Anon:") + _number(text, b"\nSwapPss:")
        ) * KIB + process.fixed
        shared += _number(text, b"\nPss_Shmem:") * KIB
    return anonymous + max(shared, sum(map(_held, scratch)) + _system_v())


class Unseen:
    """What the kernel holds for the processes that is in no figure of theirs: as much as it can be
    at most.

    `socket_bytes` is what one socket can hold. It begins when none of them has started.
    """

    def __init__(self, socket_bytes: int) -> None:
        self._socket_bytes = socket_bytes
        self._shared_before = _machine_s_shared()
        self._most_mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
        self._mappings: dict[int, int] = {}
        """Of each process, as of when it was asked: the longest ago first."""
        self.may_be_others = False
        """Whether what `held` last returned has shared memory in it of which nobody says whose it
        is."""

    def held(self, usage: Usage, room: int) -> int:
        """Return it. `room` is how much there may be: what takes long is only asked where that may
        be passed.
        """
        held = usage.filters * _FILTER_BYTES + _sockets() * self._socket_bytes
        roomy = held + usage.open_files * _OPEN_FILE_BYTES <= room
        held += (
            usage.open_files if roomy else sum(map(_open_files, usage.processes))
        ) * _OPEN_FILE_BYTES
        if held + len(usage.processes) * self._most_mappings * _MAPPING_BYTES > room:
            held += self._of_mappings(usage.processes)
        grown = max(0, _machine_s_shared() - self._shared_before - usage.shared_bytes)
        self.may_be_others = (
            grown > 0
            and held + grown > room
            and any(_ANONYMOUS in _maps(process) for process in usage.processes)
        )
        return held + grown if self.may_be_others else held

    def _of_mappings(self, processes: Sequence[int]) -> int:
        """Ask one process how many it has, in turn: of 65,000 it takes 20 ms to list them."""
        self._mappings = {
            number: many for number, many in self._mappings.items() if number in processes
        }
        turn = next(
            (process for process in processes if process not in self._mappings),
            next(iter(self._mappings), None),
        )
        if turn is not None:
            self._mappings.pop(turn, None)
            self._mappings[turn] = _maps(turn).count(b"\n")
        return sum(self._mappings.values()) * _MAPPING_BYTES


def _machine_s_shared() -> int:
    """Return what is shared memory, or in a file system in memory, on all of this machine."""
    return _number(Path("/proc/meminfo").read_bytes(), b"\nShmem:") * KIB


def _sockets() -> int:
    """Return how many this network namespace has, those on their way or without a process
    included.
    """
    return _number(b"\n" + Path("/proc/self/net/sockstat").read_bytes(), b"\nsockets: used")


def _open_files(process: int) -> int:
    """Return how many it has: the size of its folder of them, since Linux 6.2."""
    folder = Path(f"/proc/{process}/fd")
    try:
        return folder.stat().st_size or sum(1 for _ in folder.iterdir())
    except OSError:  # it has ended, or may not be read
        return 0


def _maps(process: int) -> bytes:
    try:
        return (_with_memory(Path(f"/proc/{process}")) / "maps").read_bytes()
    except OSError:  # it has ended, or may not be read
        return b""


def elsewhere(processes: Sequence[int]) -> int:
    """Return what file systems in memory hold that are mounted in namespaces of the processes' own,
    and not in ours.

    One that is mounted over cannot be asked; nor can one be that a program of the job's own serves
    the way to, which may take for ever.
    """
    devices = {device for device, _ in _in_memory("self")}
    spaces: dict[str, int] = {}
    for process in processes:
        with suppress(OSError):  # it has just ended
            spaces.setdefault(str(Path(f"/proc/{process}/ns/mnt").readlink()), process)
    spaces.pop(str(Path("/proc/self/ns/mnt").readlink()), None)
    held = 0
    for process in spaces.values():
        with suppress(OSError):
            for device, point in _in_memory(process):
                if device not in devices:
                    devices.add(device)
                    with suppress(OSError):
                        held += _held_there(f"/proc/{process}/root{point}", device)
    return held


def _held_there(path: str, device: str) -> int:
    """Return what the file system `device` holds that is at a path; 0 where another is there by
    now, as while a container changes its root.
    """
    place = os.open(path, os.O_PATH)
    try:
        number = os.fstat(place).st_dev
        if f"{os.major(number)}:{os.minor(number)}" != device:
            return 0
        return _held(place)
    finally:
        os.close(place)


def _in_memory(process: object) -> list[tuple[str, Path]]:
    return mounts.in_memory(
        Path(f"/proc/{process}/mountinfo").read_text(errors="surrogateescape").splitlines()
    )


def on_disk(folder: int, processes: Sequence[int]) -> int:
    """Return what the files below an open folder take on their disk, and those that only processes
    hold open.
    """
    total = 0
    for _, _, names, descriptor in os.fwalk(".", dir_fd=folder):
        for name in names:
            with suppress(OSError):  # it has just gone
                total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
    nameless = {}
    for process in processes:
        with suppress(OSError):  # it has just ended
            for link in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    status = link.stat()
                    nameless[status.st_dev, status.st_ino] = (
                        status.st_blocks * 512 if status.st_nlink == 0 else 0
                    )
    return total + sum(nameless.values())


@dataclass(frozen=True, slots=True)
class _Watched:
    number: int
    place: Path
    """Where /proc tells of its memory."""
    threads: int
    open_files: int
    filters: int
    anonymous: int
    """Swapped out or not."""
    shared: int
    fixed: int
    """Page tables of what it has touched (a terabyte of nothing takes 2 GiB), and pages of files
    that it locked."""


def _descendants(first: int) -> Iterable[_Watched]:
    """Return every process below the first one, by one reading of /proc."""
    children: defaultdict[int, list[_Watched]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            text = (folder / "status").read_bytes()
            place, parent, threads = folder, _number(text, b"\nPPid:"), _number(text, b"\nThreads:")
            if threads > 1 and _MEMORY not in text:
                place = _with_memory(folder)
                text = (place / "status").read_bytes()
        except OSError:  # it has ended
            continue
        anonymous = _number(text, _MEMORY) + _number(text, b"\nVmSwap:")
        fixed = _number(text, b"\nVmPTE:") + min(
            _number(text, b"\nVmLck:"), _number(text, b"\nRssFile:")
        )
        sizes = [size * KIB for size in (anonymous, _number(text, b"\nRssShmem:"), fixed)]
        filters = max(0, _number(text, b"\nSeccomp_filters:") - 1)  # beside ours
        counts = threads, _number(text, b"\nFDSize:"), filters
        children[parent].append(_Watched(int(folder.name), place, *counts, *sizes))
    waiting = [first]
    while waiting:
        for child in children[waiting.pop()]:
            waiting.append(child.number)
            yield child


def _with_memory(process: Path) -> Path:
    """Return where /proc tells of a process's memory: with a thread of it, where the first one has
    ended.
    """
    if _MEMORY in (process / "status").read_bytes():
        return process
    threads = (process / "task").iterdir()
    return next(
        (thread for thread in threads if _MEMORY in (thread / "status").read_bytes()), process
    )


def _number(text: bytes, key: bytes) -> int:
    """Return the number after `key`, or 0: a process that is ending has no memory lines."""
    place = text.find(key)
    return 0 if place < 0 else int(text[place + len(key) :].split(None, 1)[0])


def _held(scratch: int) -> int:
    status = os.fstatvfs(scratch)
    pages, inodes = status.f_blocks - status.f_bfree, status.f_files - status.f_ffree
    return pages * status.f_frsize + inodes * _INODE_BYTES


def _system_v() -> int:
    """Return what shared memory segments of this IPC namespace hold, in memory or swapped out,
    mapped or not.

    The last two columns of /proc/sysvipc/shm (ipc/shm.c); a kernel without System V's IPC has no
    such file.
    """
    try:
        segments = Path("/proc/sysvipc/shm").read_bytes().splitlines()[1:]
    except FileNotFoundError:
        return 0
    return sum(int(size) for segment in segments for size in segment.split()[-2:])
