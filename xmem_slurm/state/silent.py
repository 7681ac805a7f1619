"""Does the file system answer on which a folder or file lies? Found out before it is touched.

Whoever touches a file system whose server is gone waits in the kernel, and often no signal ends
that: who wants to become sbatch would never do so. Where the kernel answers by itself, a path costs
nothing here. A mount that another process or machine serves (NFS, FUSE) is touched by a process of
its own first, once, at the price of a fork.

A process that does not come back is left behind, with nothing of ours open. A signal is on its way
to it, which ends it where the file system lets it (NFS does; FUSE does not until its server answers
or ends). It holds a name meanwhile, by which the next of this user knows without another look: so
there is one such process a mount, however many submissions there are.

Links are followed as far as they can be without touching what may not answer. This is on the way of
jobs that must not wait, so it imports little.
"""

import errno
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from xmem_slurm.errors import SilentPlace

if TYPE_CHECKING:
    import socket

SECONDS = 3.0
"""So long a mount has for its answer: a busy server takes a second or two."""

LOCAL = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "overlay"}
    | {"ramfs", "squashfs", "tmpfs", "udf", "vfat", "xfs", "zfs"}
)
"""What the kernel answers for by itself; nobody has to know every network file system's name."""
_OF_THE_KERNEL = frozenset(
    {"binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"}
    | {"efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rootfs"}
    | {"rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"}
)
_LEFT_AFTER_SECONDS = 5
"""When the process that hangs is sent its signal."""
_MOST_LINKS = 40
"""As many as Linux follows (path_resolution(7))."""

_HOLDS_SECONDS = 10.0
"""So long what has answered is not asked again: while a dry run is made, a server may go."""

_answered: dict[str, float] = {}
"""Mount points that have answered this process, and when, by the monotonic clock."""
_passed: set[str] = set()
"""Paths that are no links, and lie where all answers."""


def require_answers(places: Iterable[Path | str]) -> None:
    """See that what is on the way to these places answers; they need not exist.

    Raises:
        SilentPlace: something does not.
    """
    point = mount_on_the_way(places)
    if point is not None:
        raise SilentPlace(f"the file system at {point} does not answer")


def mount_on_the_way(places: Iterable[Path | str]) -> Path | None:
    """Return a mount point on the way to these places that does not answer; None where all do.

    An error is an answer, too. Where no process can be started that looks, all is taken to answer.
    """
    if _answered and time.monotonic() - min(_answered.values()) > _HOLDS_SECONDS:
        _answered.clear()
        _passed.clear()
    mounted = _mounted("/proc/self/mountinfo")
    if not any(map(_is_served, mounted.values())):
        return None
    unchecked = {_absolute(os.fspath(place)) for place in places}
    while True:
        points = {
            place: point for place in unchecked if (point := _next(place, mounted)) is not None
        }
        if not points:
            return None
        mounts = sorted({*points.values()})
        try:
            silent = _look(mounts)
        except OSError:
            return None
        if silent is not None:
            return Path(silent)
        _answered.update(dict.fromkeys(mounts, time.monotonic()))
        unchecked = {*points}


def is_known(point: str) -> bool:
    """Whether a process of this user still hangs on a mount point, or did a moment ago."""
    caller = new_socket()
    try:
        caller.connect(_name(point))
    except OSError:
        return False
    finally:
        caller.close()
    return True


def new_socket() -> "socket.socket":
    """Return what can hold a name (`make_known`), and is inherited by a fork."""
    import _socket  # noqa: PLC0415 - `socket` takes ten times as long; nothing is needed of it

    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)  # type: ignore[return-value]


def make_known(point: str, held: "socket.socket") -> None:
    """Let this socket, which the process that hangs there has open as well, tell others of it."""
    with suppress(OSError):  # another one does
        held.bind(_name(point))


def _name(point: str) -> bytes:
    import zlib  # noqa: PLC0415 - nobody needs it where nothing is served

    path = os.fsencode(point)  # a name has 107 bytes (unix(7))
    return b"\0xmem-slurm-silent-%d-%08x" % (os.getuid(), zlib.crc32(path)) + path[-50:]


@cache
def _mounted(mountinfo: str) -> Mapping[str, str]:
    """Return the kind of each mount by its point, the topmost one of a point."""
    mounted: dict[str, str] = {}
    with suppress(OSError):  # nothing is known: nothing can be looked at, either
        for line in os.fsdecode(Path(mountinfo).read_bytes()).split("\n")[:-1]:
            point, kind = line.split(" ", 5)[4], line.partition(" - ")[2].partition(" ")[0]
            if "\\" in point:  # a space is \040
                point = os.fsencode(point).decode("unicode_escape")
                point = os.fsdecode(point.encode("latin-1"))
            mounted[point] = kind
    return mounted


def _is_served(kind: str) -> bool:
    """Whether another process or machine may have to answer for a file system of this kind."""
    return bool(kind) and kind not in LOCAL and kind not in _OF_THE_KERNEL


def _absolute(place: str) -> str:
    if not place.startswith("/"):
        with suppress(OSError):  # the folder is gone, and so is what is named from there
            return f"{os.getcwd()}/{place}"  # noqa: PTH109 - as text
    return place


def _next(place: str, mounted: Mapping[str, str]) -> str | None:
    """Return the first on the way to a place that has to be looked at; None where there is none.

    That is a mount point, or what an automounter makes one as soon as it is touched.
    """
    if _is_to_be_asked("/", "/", mounted):
        return "/"
    reached = place
    while reached and reached not in _passed:
        reached = reached.rpartition("/")[0]
    waiting, links = place[len(reached) :].split("/")[::-1], 0
    while waiting and links <= _MOST_LINKS:
        part, above = waiting.pop(), reached
        if part in ("", ".", ".."):
            reached = above.rpartition("/")[0] if part == ".." else above
            continue
        reached = f"{above}/{part}"
        if reached in _passed:
            continue
        if _is_to_be_asked(reached, above or "/", mounted):
            return reached
        try:
            link = os.readlink(reached)  # noqa: PTH115 - as text
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) or error.errno != errno.EINVAL:
                return None  # nothing is there
            _passed.add(reached)
            continue
        links += 1
        reached = "" if link.startswith("/") else above
        waiting += link.split("/")[::-1]
    return None


def _is_to_be_asked(path: str, above: str, mounted: Mapping[str, str]) -> bool:
    """Whether others serve what is or will be mounted here, and have not answered."""
    is_served = mounted.get(above) == "autofs" or _is_served(mounted.get(path, ""))
    return is_served and path not in _answered


def _look(points: Sequence[str]) -> str | None:
    """Have a process touch these, one after the other; return the first that does not answer.

    Raises:
        OSError: there can be no such process.
    """
    silent_point = next(filter(is_known, points), None)
    if silent_point is not None:
        return silent_point
    until = time.monotonic() + SECONDS
    answer, end = os.pipe()
    held = new_socket()
    try:
        try:
            child = os.fork()
            if child == 0:
                _be_left_alone(points, end, held.fileno())
        finally:
            os.close(end)
        os.waitpid(child, 0)
        return _first_without_answer(points, answer, held, until)
    finally:
        held.close()
        os.close(answer)


def _first_without_answer(
    points: Sequence[str],
    answer: int,
    held: "socket.socket",
    until: float,
) -> str | None:
    """Return which of these has no dot on this descriptor at that time of the monotonic clock."""
    import select  # noqa: PLC0415 - nobody needs it where nothing is served

    answers, waiting = 0, select.poll()
    waiting.register(answer)
    while answers < len(points):
        if not waiting.poll(1000 * max(0.0, until - time.monotonic())):
            make_known(points[answers], held)
            return points[answers]
        dots = os.read(answer, len(points))
        if not dots:  # something has ended it: it says nothing of these
            return None
        answers += len(dots)
    return None


def _be_left_alone(points: Sequence[str], end: int, held: int) -> NoReturn:
    """Touch these in a process that is nobody's child: whoever becomes of us started none."""
    from xmem_slurm.descriptors import close_all_but  # noqa: PLC0415 - nobody needs it where nothing is served

    try:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(_LEFT_AFTER_SECONDS)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                if descriptor not in (end, held):
                    os.dup2(nothing, descriptor)
            close_all_but(end, held)
            os.chdir("/")
            for point in points:
                with suppress(OSError):
                    os.statvfs(point)  # what no cache answers
                os.write(end, b".")
    finally:
        os._exit(0)
