"""Whose are the folders and files that we keep, and how is a file written whole? The one place that
looks.

A kept answer becomes a script that sbatch gets, so nothing is read that anybody else could have
written, and nothing is put where somebody else could exchange it: a folder of ours is the user's
own, no link, and closed to others' writing; a file of ours is that, too, and a regular one. What is
refused is never repaired: whoever opened it may have been there. Files are written beside their
place and renamed into it, so that they are there whole or not at all.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xmem_slurm.state import silent

_OPEN = "not used, as it is a link, another user's, or others can write there"


def _of_user(variable: str, usual: str) -> Path:
    """Return the user's folder of one kind for us: that of the variable, else the usual one.

    By the XDG Base Directory Specification (0.8), which has relative paths ignored. To import a
    library for these few lines takes a seventh of the CPU time of a submission whose answer is
    known.
    """
    named = os.environ.get(variable, "")
    base = named if named.startswith("/") else os.path.expanduser(usual)  # noqa: PTH111
    return Path(base, "xmem-slurm")


def cache_folder(name: str) -> Path:
    """Return where the user's caches of this kind are; it need not exist."""
    return _of_user("XDG_CACHE_HOME", "~/.cache") / name


def config_file(name: str) -> Path:
    """Return where a file that the user has written for us is; there need be none."""
    return _of_user("XDG_CONFIG_HOME", "~/.config") / name


def record_folder(name: str) -> Path:
    """Return where the user's records of this kind are; it need not exist."""
    return _of_user("XDG_STATE_HOME", "~/.local/state") / name


def data_folder(name: str) -> Path:
    """Return where files of this kind are that the user's jobs read, and dry runs of them; it need
    not exist.
    """
    return _of_user("XDG_DATA_HOME", "~/.local/share") / name


def make(folder: Path) -> Path:
    """Make a folder of ours if there is none, and return it.

    Raises:
        OSError: it cannot be made; what is there is not ours; or somebody else could put another
        one there.
        SilentPlace: the file system that it is on does not answer.
    """
    silent.require_answers([folder])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    above = folder.parent.stat()
    exchanged = above.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    if exchanged or above.st_uid not in {os.geteuid(), 0}:
        raise PermissionError(errno.EPERM, _OPEN, str(folder.parent))
    check(folder)
    return folder


def check(path: Path) -> None:
    """See that a folder or file that we made, which may be gone, is still ours.

    Raises:
        PermissionError: it is a link, somebody else's, or open to others.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or not _is_private(status):
            raise PermissionError(errno.EPERM, _OPEN, str(path))


def read(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file of ours.

    Raises:
        OSError: it is not there; or it is a link, no regular file, somebody else's, open to others,
            or larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or not _is_private(status)
            or status.st_size > most_bytes
        ):
            raise PermissionError(errno.EPERM, "not ours", str(path))
        return file.read(most_bytes)


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put a file into a folder of ours, in the place of one that is there.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    with _put_in_place(path, content) as descriptor:
        os.fchmod(descriptor, mode)


def write_for_user(path: Path, content: bytes) -> None:
    """Write a file where the user wants it; what was there hands on its mode and owner.

    A link stays, and the file that it names is written. A device (/dev/null, a terminal) is written
    to. What else is no regular file is refused: a FIFO may have no reader.

    Raises:
        OSError: the folder is not there, is full, or is not the user's to write in; it is a link
            that another user made; or it is no file and no device.
    """
    if path.is_symlink():
        if path.lstat().st_uid not in {os.geteuid(), 0}:
            raise PermissionError(errno.EPERM, "a link that another user made", str(path))
        path = path.resolve()
    before = path.stat() if path.exists() else None
    if before is not None and stat.S_ISCHR(before.st_mode):
        with open(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NOFOLLOW), "wb") as device:  # noqa: PTH123
            device.write(content)
        return
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a device", str(path))
    with _put_in_place(path, content) as descriptor:
        os.fchmod(
            descriptor, stat.S_IMODE(before.st_mode) if before is not None else 0o666 & ~_umask()
        )
        if before is not None and os.geteuid() == 0:
            os.fchown(descriptor, before.st_uid, before.st_gid)


def unwritable(path: Path) -> str | None:
    """Return why the user can have no file there, as far as that is seen before there is one, or
    None.
    """
    if path.is_dir():
        return "is a folder"
    if path.exists():
        return None if os.access(path, os.W_OK) else "is not yours to write"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if os.access(path.parent, os.W_OK | os.X_OK):
        return None
    return f"{path.parent} is not yours to write in"


def by_age(folder: Path) -> list[tuple[float, Path]]:
    """Return what is in a folder and how many seconds old it is, the youngest first; others may
    clear up meanwhile.
    """
    now, aged = time.time(), []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                aged.append((now - entry.stat(follow_symlinks=False).st_mtime, Path(entry.path)))
    return sorted(aged)


@contextmanager
def _put_in_place(path: Path, content: bytes) -> Iterator[int]:
    """Write beside `path`, let the caller see to the new file's descriptor, and rename it into
    place.
    """
    import tempfile  # noqa: PLC0415 - not needed to read

    if not path.parent.is_dir():  # else the error would name the file beside it
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    # private from the first byte
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield descriptor
        Path(part).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(part).unlink()
        raise


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _umask() -> int:
    """Return the mask of new files, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
