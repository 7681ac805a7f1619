"""Where does a dry run have its script and shims, and its layers on disk, and who clears that away
if it is killed?

In a folder of its own, held by a lock while its owner lives: a lock goes with the process, however
that ends. Each start removes those folders of this user whose lock nobody holds.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def made(place: Path, prefix: str) -> Iterator[Path]:
    """Give a new folder in `place` whose name begins so; no symlink is in its path. It goes at the
    end.

    What cannot be removed then goes with a later start. Raises OSError.
    """
    place = place.resolve()
    for leftover in place.glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, or one in use
            _clear(leftover)
    folder, held = _new(place, prefix)
    try:
        yield folder
    finally:
        with suppress(OSError):
            remove(folder)
        os.close(held)


def _new(place: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder and hold it; another one, where somebody's start found it before it was
    held.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        try:
            folder.chmod(stat.S_IRWXU)  # whatever the umask
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        # a file system without locks: nobody else can take it for left over
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        if folder.exists():
            return folder, held
        os.close(held)


def _clear(leftover: Path) -> None:
    status = leftover.lstat()  # of which a umask of before may have left its owner nothing
    if (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & stat.S_IRUSR
    ):
        leftover.chmod(stat.S_IRWXU)
    held = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(held).st_uid == os.geteuid():
            remove(leftover)
    finally:
        os.close(held)


def remove(folder: Path) -> None:
    """Remove a tree of our own, whatever the modes in it."""
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if not path.is_symlink():
                path.chmod(stat.S_IRWXU)
    shutil.rmtree(folder)
