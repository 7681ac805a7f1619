"""What is mounted here, which sockets lead out, and where will a job want to write? Read before a
new root is built.

All paths are absolute.
"""

import os
import platform
import re
import stat
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.errors import SandboxError
from xmem_slurm.sandbox import linux
from xmem_slurm.state import throwaway
from xmem_slurm.units import MIB

NAME_SERVICE_SOCKETS = "/var/lib/sss/"
"""sssd's: the C library asks there who a user is."""
FOREIGN_ENTRIES = 2000
FOREIGN_FILE_BYTES = MIB
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - the job's, not ours


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    number: int
    parent: int
    point: Path
    kind: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a new root is made from. No path has a symlink in it.

    `writable` are folders where the job may be expected to make files; `foreign` what needs care
    there because it is not ours (see `foreign`). `show`, `hide`, `results` and `cover` are those of
    `sandbox.run`. `layers` is a folder on disk for what the job writes, where a tmpfs will not do
    (see `layers_on_disk`). `silent` are mount points that do not answer (`answering`): nobody looks
    at them, and in their place is an empty folder. `containers` is whether the job may have
    namespaces of its own, `fuse` whether /dev/fuse as well.
    """

    mounts: Sequence[Mount]
    sockets: Sequence[Path]
    writable: Sequence[Path]
    foreign: Sequence[Path]
    show: Sequence[Path]
    hide: Sequence[Path]
    results: Path | None
    cover: Mapping[Path, Path]
    scratch_bytes: int
    user_namespace: bool
    layers: Path | None
    silent: Sequence[Path] = ()
    containers: bool = False
    fuse: bool = False


def visible(mountinfo: str) -> list[Mount]:
    """Return the mounts that a path can reach, from the text of /proc/self/mountinfo
    (proc_pid_mountinfo(5)).

    A mount is out of reach when a later one lies on top of it or on a folder above it.
    """
    mounts = [_parse(line) for line in mountinfo.splitlines()]
    by_number = {mount.number: mount for mount in mounts}
    places = {(mount.parent, mount.point) for mount in mounts}

    def covered(mount: Mount) -> bool:
        if any((mount.parent, folder) in places for folder in mount.point.parents):
            return True
        parent = by_number.get(mount.parent)
        return parent is not None and covered(parent)

    return [
        mount
        for mount in mounts
        if (mount.number, mount.point) not in places and not covered(mount)
    ]


def in_memory(mountinfo: Sequence[str]) -> list[tuple[str, Path]]:
    """Return (device, where) of each tmpfs among the lines of a mountinfo."""
    fields = ((line.split(" ", 3)[2], _parse(line)) for line in mountinfo)
    return [(device, mount.point) for device, mount in fields if mount.kind in ("tmpfs", "ramfs")]


def _parse(line: str) -> Mount:
    fields = line.split(" ")
    kind = fields[fields.index("-", 6) + 1]
    # a space is \040
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
    return Mount(int(fields[0]), int(fields[1]), Path(point), kind)


def bound_sockets(net_unix: str, silent: Sequence[Path] = ()) -> list[Path]:
    """Return the paths of the Unix sockets in the text of /proc/net/unix (its eighth column),
    symlinks resolved.

    Not those of the name service, nor what lies where it is `silent`. A path that is relative to
    someone else's folder cannot be known.
    """
    paths = {line.split(" ", 7)[-1].strip() for line in net_unix.splitlines()[1:] if "/" in line}
    paths = {
        path for path in paths if path.startswith("/") and not path.startswith(NAME_SERVICE_SOCKETS)
    }
    paths = {path for path in paths if within(Path(path), silent) is None}
    return sorted({Path(os.path.realpath(path)) for path in paths})


def within(path: Path, folders: Sequence[Path]) -> Path | None:
    """Return which of these folders a path is in, or is; None for none."""
    return next((folder for folder in folders if path.is_relative_to(folder)), None)


def places_to_write(cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders where a job may be expected to make files: its working directory,
    temporary ones, its home.
    """
    wanted = [cwd, *map(Path, _TEMPORARY)]
    wanted += [
        Path(environ[name]) for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME") if environ.get(name)
    ]
    return list(
        dict.fromkeys(Path(os.path.realpath(path)) for path in wanted if path.is_absolute())
    )


def foreign(start: Path) -> list[Path]:
    """Find folders, and small files, that we may write but are not of our own user and group; the
    nearest first.

    Only they need care inside a user namespace, and only outside one can they be told. Looks at
    FOREIGN_ENTRIES.
    """
    ours = os.geteuid(), os.getegid()
    waiting = deque([start])
    entry_count = 0
    places: list[Path] = []
    while waiting and entry_count < FOREIGN_ENTRIES:
        try:
            entries = list(os.scandir(waiting.popleft()))
        except OSError:  # it has just gone, or we may not read it
            continue
        entry_count += len(entries)
        for entry in entries:
            with suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    waiting.append(Path(entry.path))
                elif not stat.S_ISREG(facts.st_mode) or facts.st_size > FOREIGN_FILE_BYTES:
                    continue
                if (facts.st_uid, facts.st_gid) != ours and os.access(entry.path, os.W_OK):
                    places.append(Path(entry.path))
    return places


def needs_user_namespace() -> bool:
    """Tell whether mounting takes a user namespace of our own; so it is for everyone but a full
    root.
    """
    return not linux.has_capability(linux.CAP_SYS_ADMIN)


def tmpfs_keeps_marks() -> bool:
    """Tell whether a tmpfs has user extended attributes (Linux 6.6, or a kernel that has it from
    there).

    An overlay in a user namespace needs them on its upper layer to mark a folder that replaces a
    deleted one; without, mkdir after rmdir fails with EIO.
    """
    descriptor = os.memfd_create("try")  # lives on the kernel's own tmpfs
    try:
        return _keeps_marks(descriptor)
    finally:
        os.close(descriptor)


def _keeps_marks(place: int | str) -> bool:
    try:
        os.setxattr(place, "user.xmem", b"")
    except OSError:
        return False
    return True


@contextmanager
def layers_on_disk() -> Iterator[Path]:
    """Give an empty folder on a disk whose file system can mark folders, and remove it afterwards.

    In /var/tmp rather than TMPDIR where both will do: each folder above it has to be made anew,
    entry by entry.

    Raises:
        SandboxError: there is none.
    """
    for place in dict.fromkeys(("/var/tmp", tempfile.gettempdir())):  # noqa: S108 - mkdtemp makes it ours
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(throwaway.made(Path(place), "xmem-layers-"))
            except OSError:
                continue
            if _keeps_marks(str(folder)):
                yield folder
                return
    raise SandboxError(
        f"no sandbox here: Linux {platform.release()} needs a folder for temporary files with "
        "extended attributes; "
        "set TMPDIR to one on a local disk (or use Linux 6.6)"
    )
