"""Notes which files this Python opens and which folders it lists, so that an estimate can be
trusted while they stay.

All Pythons of a dry run write to one file, `files.log` beside the traces: a line for the first time
that each of them meets a path, written at once, as a process may be ended at any time. A line is
"KIND SIZE MTIME_NS PATH" and a NUL:

    R   was there when it was opened for reading (or loaded as an extension module); its size and
        time as of then
    D   a folder that was listed; by the import system: only where packages are installed
    A   was not there when it was opened or asked after, or is a folder that was made: what is read
        below that is the job's own
    I   a container's image: for SIZE the number of its header (dryrun/containers/images.py), beside
        its own line
    W   opened for writing, or renamed to: what is read there later is the job's own
    T   there were too many: what follows is not noted

In a container only what lies outside of its image is noted, under its path there; the image itself
was noted by who started it.

The limits of Python's audit events: what native code opens itself (a tokenizer in Rust). They have
none for what os.path.exists and its like ask: so `os.stat` and `os.lstat`, by which they do, are
watched for what is not there.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from _xmem.annotations import Function
    from _xmem.process.audit import Listener

LOG = "files.log"
MOST = 40_000
"""Paths noted by one process. A job of torch and transformers opens about 4,000."""

_WRITING = os.O_WRONLY | os.O_RDWR
_IMPORTING = (
    "<frozen importlib",
    "/importlib/",
    "importlib_metadata",
    "pkgutil",
    "pkg_resources",
    "setuptools",
)
"""What lists the folders of sys.path in search of modules; a training script's own folder changes
with every job."""
_UNSTEADY = (
    "/proc/",
    "/sys/",
    "/dev/",
    os.path.join(os.environ.get("TMPDIR") or "/tmp", "torchinductor_"),  # noqa: S108 - where torch has it
)
"""What changes by itself; the last is torch's own cache, which any first import may make."""


def _has_packages(folder: object) -> bool:
    return isinstance(folder, str) and folder.endswith(("site-packages", "dist-packages"))


def mounts(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return [[device, folder of it, where it is mounted]], of a mountinfo's fields as they are
    written there.
    """
    return [
        [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in row]
        for row in rows
    ]


def _below(path: str, folder: str) -> str | None:
    """Return what of a path is below a folder, with its "/"; None if it is elsewhere."""
    tail = path[len(folder.rstrip("/")) :]
    return tail if path.startswith(folder) and (not tail or tail[0] == "/") else None


class Outside:
    """Where the files of a container are outside of it: `outside_rows` are the mounts outside
    (`mounts`), `inside_rows` its own.
    """

    def __init__(self, outside_rows: list[list[str]], inside_rows: list[list[str]]) -> None:
        self._outside_rows, self._inside_rows = outside_rows, inside_rows

    def path(self, path: str) -> str | None:
        """Return the path of a file outside; None for one of the container's own."""
        above = [row for row in self._inside_rows if _below(path, row[2]) is not None]
        device, folder, point = max(above[::-1], key=_depth)  # of two on one place the later one
        inner = folder.rstrip("/") + (_below(path, point) or "")
        for device_there, folder_there, point_there in self._outside_rows:
            tail = _below(inner, folder_there) if device_there == device else None
            if tail is not None:
                return point_there.rstrip("/") + tail
        return None


def _depth(row: Sequence[str]) -> int:
    return len(row[2])


def _outside() -> Outside | None:
    """Return where the files of this process are, if it is in a container; else None."""
    if "XMEM_MOUNTS" not in os.environ:
        return None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split(" ", 5)[2:5] for line in file]
    return Outside(mounts(json.loads(os.environ["XMEM_MOUNTS"])), mounts(rows))


class _Notes:
    def __init__(self, folder: str) -> None:
        self._outside = _outside()
        self._file = os.path.join(folder, LOG)
        self._ours = os.path.dirname(folder) + os.sep
        self._noted_paths: set[bytes] = set()
        self._own_folders: set[bytes] = set()  # folders of the job's own
        self._log = -1
        self._pid: int | None = None

    def opened(self, path: object, _mode: object, flags: int) -> None:
        self._note(path, "W" if flags & _WRITING else "R")

    def imported(self, _module: str, path: str | None, *_rest: Any) -> None:
        if path:
            self._note(path, "R")

    def listed(self, folder: Any = ".") -> None:
        caller, folder = sys._getframe(2).f_code.co_filename, folder or "."
        if not any(name in caller for name in _IMPORTING) or _has_packages(folder):
            self._note(folder, "D")

    def renamed(self, _old: object, new: object, *_folders: Any) -> None:
        self._note(new, "W")

    def folder_made(self, folder: Any, _mode: int, _beside: int) -> None:
        """A folder is about to be made: temporary ones, of workers that hand tensors over, too."""
        try:
            if not os.path.exists(folder):
                self._note(folder, "R")
                self._own_folders.add(os.fsencode(os.path.abspath(folder)))
        except Exception:  # whatever a script gave to mkdir() is its own affair
            return

    def missing(self, look: Function) -> Function:
        """Return what takes the place of `os.stat` or `os.lstat`, and notes what is not there."""

        @functools.wraps(look)
        def noted_look(*args: Any, **kwargs: Any) -> os.stat_result:
            try:
                return look(*args, **kwargs)
            except (FileNotFoundError, NotADirectoryError):
                if kwargs.get("dir_fd") is None:
                    self._note(args[0] if args else kwargs["path"], "R")
                raise

        return noted_look

    def _is_own(self, path: bytes) -> bool:
        """Whether a path is below a folder that the job has made."""
        while self._own_folders and len(path) > 1:
            if path in self._own_folders:
                return True
            path = os.path.dirname(path)
        return False

    def _note(self, path: Any, kind: str) -> None:
        """Write a line for a path that is met for the first time."""
        try:
            if isinstance(path, int):
                return
            path = os.fsencode(os.path.abspath(os.fspath(path)))
            if path in self._noted_paths or len(self._noted_paths) > MOST or self._is_own(path):
                return
            self._noted_paths.add(path)
            text = os.fsdecode(path)
            if not text.startswith(_UNSTEADY) and not text.startswith(self._ours):
                line: bytes | None = b"T 0 0 \0"
                if len(self._noted_paths) <= MOST:
                    line = _line(kind, text, self._outside)
                if line is not None:
                    self._write(line)
        except Exception:  # whatever a script gave to open() is its own affair
            return

    def _write(self, line: bytes) -> None:
        if self._pid != os.getpid():  # a forked child may have closed what it inherited
            self._log = os.open(
                self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            self._pid = os.getpid()
        os.write(self._log, line)


def _line(kind: str, path: str, outside: Outside | None = None) -> bytes | None:
    """Return the line for a file as it is now; None for one of a container's own."""
    # a module that was compiled before: its source decides
    if kind == "R" and path.endswith(".pyc"):
        folder, name = os.path.split(path)
        source = os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
        path = (
            source if os.path.basename(folder) == "__pycache__" and os.path.exists(source) else path
        )
    size = mtime = 0
    if kind != "W":
        try:
            status = os.stat(path)
            # what is opened of a folder are no names
            if kind == "R" and stat.S_ISDIR(status.st_mode):
                return None
            size, mtime = status.st_size, status.st_mtime_ns
        except OSError:
            kind = "A"
    place = path if outside is None else outside.path(path)
    if place is None:
        return None
    return b"%s %d %d %s\0" % (kind.encode(), size, mtime, os.fsencode(place))


def install(folder: str, audit: Listener) -> None:
    """Note files from here on; `folder` is where the traces go."""
    notes = _Notes(folder)
    audit.take(("open",), notes.opened)
    audit.take(("import",), notes.imported)
    audit.take(("os.listdir", "os.scandir"), notes.listed)
    audit.take(("os.rename",), notes.renamed)
    audit.take(("os.mkdir",), notes.folder_made)
    for name in ("stat", "lstat"):
        look = getattr(os, name)
        watched = notes.missing(look)
        setattr(os, name, watched)
        for can in (
            os.supports_dir_fd,
            os.supports_fd,
            os.supports_follow_symlinks,
        ):  # as shutil.rmtree asks
            if look in can:
                can.add(watched)
