"""What was decided, of whose job? One JSON line a decision, where the site names a folder for them
([audit]).

A line has the job's name, what it asked for and what it asks for now; nothing of its script, its
arguments or what it said. Each user has a file of their own, which nobody else can write, and a
line is one write at its end (O_APPEND), so that those of several submissions at once stay whole.
What cannot be written is not: a submission neither waits for its record nor fails by it, also where
the folder does not answer.
"""

import json
import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from xmem_slurm.decision import Decision, Kind
from xmem_slurm.descriptors import close_all_but
from xmem_slurm.slurm import submitter
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission

MOST_BYTES = 64 << 20
"""No more is read of a user's lines at once: whoever has written more has the others read the next
time."""
MOST_NAME = 200
MOST_RECORD_SECONDS = 10
"""A line that is not written by then is not."""
_ENDING = ".jsonl"

OUTCOMES = ("changed", "unchanged", "as written", "late", "refused")
"""What became of a job. "unchanged" is what was sized and stays: it asks for the right GPU, or the
site only advises. "late" goes as written, too, while its dry run goes on."""
_OUTCOME_OF = {
    Kind.REWRITTEN: "changed",
    Kind.NOTHING_FITS: "as written",
    Kind.NOT_ESTIMATED: "as written",
    Kind.FAILED: "as written",
    Kind.LATE: "late",
    Kind.REFUSED: "refused",
}
"""Whatever else was decided leaves it unchanged."""


class AuditOutcome(NamedTuple):
    """What became of a job: one of `OUTCOMES`, the name of the error that was the reason, what it
    asks for in the end.

    `asks_for` is empty where that is what it asked for.
    """

    word: str = "unchanged"
    reason: str = ""
    asks_for: Sequence[str] = ()


class RecordedLine(NamedTuple):
    """What is read back of a line; `before` and `after` are entries such as "gpu:h200:4"."""

    outcome: str
    seconds: float
    before: Sequence[str]
    after: Sequence[str]


def asks_for(request: Request) -> list[str]:
    """Return what a job asks for: of each of its components the resource, its kind and how many of
    it.
    """
    return [
        f"{accelerator.resource}:{accelerator.type or component.constraint or 'any'}"
        f":{component.gpus_total or accelerator.amount}"
        for component in request.components
        for accelerator in component.accelerators
    ]


def outcome(decision: Decision) -> AuditOutcome:
    """Return what became of the job that this was decided of."""
    same = decision.ready == decision.written
    after = () if same else asks_for(decision.ready.request)
    return AuditOutcome(_OUTCOME_OF.get(decision.kind, "unchanged"), decision.error, after)


def record(
    tables: Mapping[str, Any],
    command: str,
    written: Submission,
    outcome: AuditOutcome,
    *,
    began: float,
) -> None:
    """Write a line, if the site's tables name a folder that has room for it; `began` is by the
    monotonic clock.
    """
    with suppress(Exception):  # no submission fails by its record
        request = written.request
        line = {
            "time": round(time.time(), 3),
            "user": submitter.name(),
            "uid": os.getuid(),
            "command": command,
            "job": (request.value("job-name") or request.default_name or "")[:MOST_NAME],
            "from": asks_for(request),
            "to": list(outcome.asks_for) or asks_for(request),
            "outcome": outcome.word,
            "reason": outcome.reason,
            "seconds": round(time.monotonic() - began, 3),
        }
        _append(
            Path(tables["audit"]["folder"]) / f"{os.getuid()}{_ENDING}",
            json.dumps(line).encode() + b"\n",
        )


def record_apart(
    tables: Mapping[str, Any],
    command: str,
    written: Submission,
    outcome: AuditOutcome,
    *,
    began: float,
) -> None:
    """Have `record` done by a process of its own, that has nothing open and that nobody waits for.

    Raises:
        OSError: there can be none.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)  # a Ctrl-C is not for it
            if os.fork() == 0:  # whoever becomes of us has no child that it did not start
                signal.alarm(MOST_RECORD_SECONDS)
                nothing = os.open(os.devnull, os.O_RDWR)
                for descriptor in range(3):
                    os.dup2(nothing, descriptor)
                close_all_but()
                record(tables, command, written, outcome, began=began)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def unusable(folder: Path, key: str = "[audit] folder") -> str | None:
    """Say in one line why users could keep no record in this folder, or could take each other's
    away; else None.
    """
    wanted = f"{key} {folder}: {{}}; `install -d -m 1733 {folder}` creates it"
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        return wanted.format(error.strerror)
    if not stat.S_ISDIR(mode):
        return wanted.format("no folder")
    makers = [
        bits
        for bits in (stat.S_IWOTH | stat.S_IXOTH, stat.S_IWGRP | stat.S_IXGRP)
        if mode & bits == bits
    ]
    if not makers:
        return wanted.format("users cannot create files there")
    return (
        None if mode & stat.S_ISVTX else wanted.format("users can remove each other's files there")
    )


def decisions(folder: Path, read: MutableMapping[str, tuple[int, int]]) -> Iterator[RecordedLine]:
    """Return what users have written since the last time, oldest first for each; what is no such
    line is passed over.

    `read` says, by user, how far that was: in which file, by its inode, up to which byte; and is
    brought up to date. A file that was moved aside since (logrotate) is read to its end first,
    where it is beside the other as it was.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        users = {entry.name.partition(".")[0] for entry in entries if _ENDING in entry.name}
    for user in sorted(user for user in users if user.isdecimal()):
        unread_bytes = MOST_BYTES
        for inode, file in _unread(folder, user, read.get(user)):
            with file:
                at = file.tell()
                content = file.read(unread_bytes)
            unread_bytes -= len(content)
            whole = content.rfind(b"\n") + 1 or (len(content) if unread_bytes == 0 else 0)
            read[user] = inode, at + whole
            yield from _parsed(content[:whole])
            if unread_bytes == 0:
                break


def _unread(
    folder: Path, user: str, read: tuple[int, int] | None
) -> Iterator[tuple[int, BinaryIO]]:
    """Yield the files of a user in which lines may be new, each where those begin, and its
    inode.
    """
    current, aside = folder / f"{user}{_ENDING}", list[tuple[int, int, Path]]()
    for path in folder.glob(f"{current.name}?*") if read is not None else ():
        with suppress(FileNotFoundError):
            aside.append((path.lstat().st_mtime_ns, path.lstat().st_ino, path))
    paths = {inode: path for _, inode, path in sorted(aside)}
    with suppress(FileNotFoundError):
        paths[current.lstat().st_ino] = current
    inodes = list(paths)
    if read is None or read[0] not in paths:
        inodes = [inode for inode in inodes if paths[inode] == current]
    else:
        inodes = inodes[inodes.index(read[0]) :]
    for inode in inodes:
        with suppress(OSError):
            file = open(os.open(paths[inode], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")  # noqa: PTH123, SIM115
            status = os.fstat(file.fileno())
            if (
                stat.S_ISREG(status.st_mode)
                and str(status.st_uid) == user
                and status.st_ino == inode
            ):
                if read is not None and read[0] == inode and read[1] <= status.st_size:
                    file.seek(read[1])
                yield inode, file
            file.close()


def _parsed(content: bytes) -> Iterator[RecordedLine]:
    for line in content.splitlines():
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            written = json.loads(line)
            yield RecordedLine(
                str(written["outcome"]),
                float(written["seconds"]),
                [str(entry) for entry in written["from"]],
                [str(entry) for entry in written["to"]],
            )


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_nlink == 1:
            os.write(descriptor, line)
    finally:
        os.close(descriptor)
