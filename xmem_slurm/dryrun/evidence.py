"""What does a dry run rest on, and is all of it still as it was? Files and folders, by size, time
and content.

A file that has another time and the same content is the same: a `touch`, a branch that was left and
entered again, a site file that was written anew. So of what is the user's or the site's a digest is
kept, too. Of packages, thousands of files, sizes and times count, those of a folder in one digest
(kind "P"); where the user cannot write to them they change only by an upgrade, which leaves its
mark on their folder: that alone is looked at.

What the job makes itself is no reason to run it dry again: files that it wrote before it read them,
and in folders that it lists the output of its earlier runs. Such names stand among the files as
patterns, of kind "M".

This is on the way of jobs that must not wait, so it imports little.
"""

import fnmatch
import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Union

from xmem_slurm.state import silent

if TYPE_CHECKING:
    from xmem_slurm.trace import File

MOST_DIGESTED = 1 << 20
"""Bytes of a file whose content counts; of larger ones size and time do."""
MOST_LISTED = 10_000
"""Names in a folder that are compared; of larger ones the time is."""

_VOLATILE = re.compile(
    r"_|SHLVL|OLDPWD|COLUMNS|LINES|WINDOWID|DISPLAY|XAUTHORITY|STY|KRB5CCNAME|DBUS_.*|SSH_.*|GPG_.*|TMUX.*|TERM.*"
    r"|XDG_SESSION.*|XDG_VTNR|XDG_SEAT|XDG_RUNTIME_DIR|VSCODE_.*|PROMPT.*|PS1|HIST.*|LS_COLORS|INVOCATION_ID|JOURNAL_.*"
    r"|EDITOR|VISUAL|PAGER|MAIL|LESS.*|MOTD_SHOWN|COLORTERM|(CONDA_PROMPT|VIRTUAL_ENV)_(MODIFIER|PROMPT)"
)
"""Variables of a login or a terminal; a training script that reads one of them is not sized
anew."""

_PACKAGE = re.compile(r"/(?:site|dist)-packages/|/python3\.\d+/")
"""Where installed packages and Python's own library are."""
_PLACEHOLDER = re.compile(r"%\d*[A-Za-z]|%%")
"""What sbatch replaces in the name of an output file (sbatch(1), "filename pattern")."""


class Evidence(NamedTuple):
    """A path as it was: a `trace.File`, or of a kind of ours (above). Of a package's folder `names`
    are what was read.

    `digest` is of its content where that counts, else "".
    """

    kind: str
    size: int
    mtime_ns: int
    path: str
    digest: str = ""
    names: Sequence[str] = ()


Noted = Union["File", Evidence]


def can_matter(variable: str) -> bool:
    """Whether what a job does can depend on this variable of its environment."""
    return not _VOLATILE.fullmatch(variable)


def as_it_is(path: Path) -> Evidence:
    """Return what there is at a path now."""
    if silent.mount_on_the_way([path]) is not None:
        return Evidence("A", 0, 0, str(path))
    try:
        status = path.stat()
    except OSError:
        return Evidence("A", 0, 0, str(path))
    return Evidence(
        "D" if stat.S_ISDIR(status.st_mode) else "R", status.st_size, status.st_mtime_ns, str(path)
    )


def made_by_slurm(names: Iterable[str], folder: Path) -> list[Evidence]:
    """Return the output files of a job that runs in `folder`, by the `names` that its options give,
    as patterns.
    """
    return [Evidence("M", 0, 0, str(folder / _PLACEHOLDER.sub("*", name))) for name in names]


def lasting(files: Iterable[Noted]) -> list[Evidence] | None:
    """Return what of these is of this machine, with digests; None where one is not as it was, or
    not all were seen.
    """
    first = _first_of_each(files)
    if first is None:
        return None
    listed = {file.path for file in first.values() if file.kind == "D"}
    lasting_files, packages = list[Evidence](), dict[str, list[Evidence]]()
    for file in first.values():
        folder, name = file.path.rpartition("/")[::2]
        if file.kind in ("W", "M"):  # W: written before it was read, so it is the job's own
            if folder in listed:
                pattern = name if file.kind == "M" else glob.escape(name)
                lasting_files.append(Evidence("M", 0, 0, f"{folder}/{pattern}"))
        elif file.kind == "R" and _PACKAGE.search(file.path):
            packages.setdefault(folder, []).append(file)
        else:
            lasting_files.append(file)
    for folder, files_of in packages.items():
        names = [file.path[len(folder) + 1 :] for file in files_of]
        noted = Evidence(
            "P", 0, 0, folder, _stamp((file.size, file.mtime_ns) for file in files_of), names
        )
        if os.access(folder, os.W_OK):
            lasting_files.append(noted)
        elif changed([noted]) is None:
            lasting_files.append(as_it_is(Path(folder)))
        else:
            return None
    patterns = _patterns_by_folder(lasting_files)
    rows = [
        file if file.kind == "P" else file._replace(digest=_digest(file.kind, file.path, patterns))
        for file in lasting_files
    ]
    # By size and time alone: what changed while it was read has another time by now.
    by_time = [file if file.kind == "P" else file._replace(digest="") for file in rows]
    return rows if unchanged(by_time) else None


def is_of_packages(file: Evidence) -> bool:
    """Whether it is within a folder of installed packages, or in Python's own library."""
    return file.kind == "P" or _PACKAGE.search(f"{file.path}/") is not None


def _first_of_each(files: Iterable[Noted]) -> dict[tuple[str, bool], Evidence] | None:
    """Return what was noted first of each; None where not all were seen, or some do not answer."""
    first = dict[tuple[str, bool], Evidence]()
    for file in files:
        if file.kind == "T":
            return None
        first.setdefault((file.path, file.kind == "I"), Evidence(*file[:4]))
    return first if _silent(first.values()) is None else None


def _silent(files: Iterable[Evidence]) -> Path | None:
    """Return a mount point on the way to these that does not answer, or None."""
    return silent.mount_on_the_way(
        {file.path if file.kind in ("D", "P") else file.path.rpartition("/")[0] for file in files}
    )


def unchanged(files: Sequence[Evidence]) -> bool:
    """Whether all of these are as they were."""
    return changed(files) is None


def changed(files: Sequence[Evidence]) -> Evidence | None:
    """Return the first of these that is not as it was, None where all are."""
    point = _silent(files)
    if point is not None:
        return Evidence("A", 0, 0, str(point))
    patterns = _patterns_by_folder(files)
    for file in files:
        if file.kind != "M" and not (
            _holds(file) if file.kind == "P" else _is_unchanged(file, patterns)
        ):
            return file
    return None


def mentions(files: Iterable[Noted], word: bytes, script: bytes = b"") -> bool:
    """Whether one of the small files that are not of a package has this word in it, or a script."""
    return word in script or any(
        word in (_content(file.path) or b"")
        for file in files
        if file.kind == "R" and not _PACKAGE.search(file.path)
    )


def asks_slurm(files: Iterable[Noted], script: bytes, *, asked: bool | None) -> bool:
    """Whether a job may ask Slurm about itself, so that all counts that Slurm says of it.

    Traces say whether it `asked` scontrol, which many a script names for something else; None where
    there are none. Of squeue they do not.
    """
    words = [b"squeue"] if asked is not None else [b"squeue", b"scontrol"]
    return bool(asked) or any(mentions(files, word, script) for word in words)


def own_paths(files: Iterable[Noted]) -> set[str]:
    """Return which files were read, or looked for in vain, that are not of a package."""
    return {
        file.path for file in files if file.kind in ("R", "A") and not _PACKAGE.search(file.path)
    }


def _holds(package: Evidence) -> bool:
    """Whether all that was read of a folder of packages is as it was."""
    try:
        statuses = [os.stat(f"{package.path}/{name}") for name in package.names]  # noqa: PTH116 - thousands of them
    except OSError:
        return False
    return package.digest == _stamp((status.st_size, status.st_mtime_ns) for status in statuses)


def _is_unchanged(file: Evidence, patterns: dict[str, list[str]]) -> bool:
    """Whether a path is as it was. Of a folder only the names in it count: its size is the file
    system's affair.
    """
    kind, size, mtime_ns, path, digest = file[:5]
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return kind == "A"
    if kind == "A":
        return False
    if kind == "I":
        from xmem_slurm.dryrun.containers import images  # noqa: PLC0415 - few jobs have one

        return images.identity(Path(path)) == size
    is_folder = stat.S_ISDIR(status.st_mode)
    if is_folder != (kind == "D") or (kind == "R" and status.st_size != size):
        return False
    return status.st_mtime_ns == mtime_ns or (
        digest != "" and digest == _digest(kind, path, patterns)
    )


def _digest(kind: str, path: str, patterns: dict[str, list[str]]) -> str:
    """Return what tells the content of a file, or the names in a folder, from others; "": the time
    does.
    """
    if kind not in ("R", "D") or _PACKAGE.search(f"{path}/"):
        return ""
    content = _content(path) if kind == "R" else _listing(path, patterns.get(path, []))
    return "" if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


def _stamp(sizes_and_times: Iterable[tuple[int, int]]) -> str:
    return hashlib.blake2b(repr(list(sizes_and_times)).encode(), digest_size=16).hexdigest()


def _content(path: str) -> bytes | None:
    """Return the content of a small regular file; None of all else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        small = stat.S_ISREG(status.st_mode) and status.st_size <= MOST_DIGESTED
        try:
            return opened.read(MOST_DIGESTED + 1) if small else None
        except OSError:
            return None


def _listing(path: str, patterns: Sequence[str]) -> bytes | None:
    """Return the names in a folder but for those that match; None where there are too many."""
    try:
        names = os.listdir(path)  # noqa: PTH208 - names alone
    except OSError:
        return None
    if len(names) > MOST_LISTED:
        return None
    unmatched = sorted(
        name
        for name in names
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    )
    return os.fsencode("\0".join(unmatched))


def _patterns_by_folder(files: Iterable[Evidence]) -> dict[str, list[str]]:
    """Return the patterns of what the job makes itself, by folder."""
    patterns: dict[str, list[str]] = {}
    for file in files:
        if file.kind == "M":
            folder, _, pattern = file.path.rpartition("/")
            patterns.setdefault(folder, []).append(pattern)
    return patterns
