"""The lab's folder: whose it is, what its record says, and how it is emptied."""

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from xmem_slurm.errors import LabError
from xmem_slurm.lab import processes

_RECORD = "xmem-lab.json"
_UNFINISHED = "xmem-lab.json.new"


@dataclass(frozen=True)
class Record:
    """What `xmem-lab.json` says of the lab: the site it mirrors (as JSON), its options, nodes and
    daemons.

    `ready` once every node was idle; a lab without it is one whose `up` was killed.
    """

    ready: bool
    site: object
    accounting: bool
    nodes: tuple[str, ...]
    daemons: tuple[str, ...]
    hooks: tuple[str, ...]


def default() -> Path:
    """Return the folder of this user's lab: XMEM_LAB, or one in /tmp.

    Not below XDG_RUNTIME_DIR: that goes away with the last login, and other users' jobs could not
    reach it. Not below TMPDIR either: paths of sockets must be short.
    """
    return Path(os.environ.get("XMEM_LAB") or f"/tmp/xmem-lab-{os.getuid()}")  # noqa: S108 - `claim` checks its owner


def normal(folder: Path) -> Path:
    """Return the one spelling of the folder that its processes are marked with."""
    return Path(os.path.realpath(folder))


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Make the folder if it is not there, and keep other `up` and `down` out of it meanwhile.

    Raises:
        LabError: it cannot be made, others can write to it, or it holds something that is not a
            lab.
    """
    while True:
        try:
            if not folder.exists():
                folder.mkdir()
                # whatever the umask: a job's user and munge's clients must get in
                folder.chmod(0o755)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileExistsError:
            continue
        except OSError as error:
            raise LabError(f"the lab's folder cannot be made: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            held = os.fstat(handle)
            # Whoever held the lock before may have removed the folder.
            if not folder.exists() or folder.stat().st_ino != held.st_ino:
                continue
            if held.st_uid != os.getuid() or stat.S_IMODE(held.st_mode) & (
                stat.S_IWGRP | stat.S_IWOTH
            ):
                raise LabError(
                    f"{folder} is not this user's alone; name another folder with XMEM_LAB"
                )
            inside = {entry.name for entry in folder.iterdir()}
            if inside and not inside & {_RECORD, _UNFINISHED}:
                raise LabError(
                    f"{folder} is not empty and not a lab's; name another folder with XMEM_LAB"
                )
            yield
            return
        finally:
            os.close(handle)


def write_record(folder: Path, record: Record) -> None:
    """Say what is in the folder, or is about to be; from now on it is known as a lab's."""
    unfinished = folder / _UNFINISHED
    unfinished.write_text(json.dumps(asdict(record), indent=1))
    unfinished.replace(folder / _RECORD)


def read_record(folder: Path) -> Record | None:
    """Return what the folder says of its lab; None if there is none, or none that can be read."""
    try:
        fields = json.loads((folder / _RECORD).read_text())
        return Record(
            **fields | {name: tuple(fields[name]) for name in ("nodes", "daemons", "hooks")}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, private until it has its `mode`."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)


def make(path: Path, mode: int) -> None:
    """Make a folder that has `mode` whatever the umask."""
    path.mkdir()
    path.chmod(mode)


def clear(folder: Path) -> None:
    """End the lab's processes and empty the folder. The record goes last: until then it is known as
    a lab's.

    Raises:
        LabError: a process does not end.
    """
    processes.end_all(folder)
    for entry in sorted(folder.iterdir(), key=lambda one: one.name == _RECORD):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
