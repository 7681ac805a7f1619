"""Has this very submission been sized before, and is all that its dry run read still the same?

An answer is kept as JSON in the user's cache directory, under a hash of what is submitted: sbatch's arguments, the
script, the folder, the environment (but for what changes with every login), what is asked of xsbatch, our version. With
it stand the files that the dry run read, and how each was as it was read. An answer is given only if every one is so
now: a model that was edited, even while the dry run ran, is never answered from here.

What was read is known from three sources: the Pythons of the dry run note what they open
(`probe/_xmem/process/files.py`); the words of the batch script, and of the shell scripts that it names, that are files;
the site file and the GPU catalogue. An answer is not kept where a script sources something that cannot be told from
here, or where the peak was still growing. That there is no estimate is an answer, too: nobody waits a second time for
it.

Known limitations: files that native code opens by itself, what `module load` reads, and whether a file exists that was
never opened. Answers are therefore given for a week only; --xmem-fresh runs dry in any case.

This is on the way of jobs that must not wait, so it imports little.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmem_slurm import __version__
from xmem_slurm.decision import Decision, Kind
from xmem_slurm.outcomes import prediction
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files

if TYPE_CHECKING:
    from xmem_slurm.trace import File

SCHEMA_VERSION = 5
_FOLDER = "estimates"
_DAY = 86_400
MOST_DAYS = 7
DAYS_WITHOUT_ESTIMATE = 1
"""How long a job goes as it was written without another try..."""
DAYS_UNSEEN = 1 / 24
"""...and how long where it was not seen what the dry run read, so that nothing tells when it would end otherwise."""
FOR_WHO_WAITS = 0
"""Of an answer that does not last: it is given to those only who were waiting for it."""
MOST_ANSWERS = 200
MOST_BYTES = 16 << 20
"""A file of the cache that is larger is not ours."""

_VOLATILE = re.compile(
    r"_|SHLVL|OLDPWD|COLUMNS|LINES|WINDOWID|DISPLAY|XAUTHORITY|STY|KRB5CCNAME|DBUS_.*|SSH_.*|GPG_.*|TMUX.*|TERM.*"
    r"|XDG_SESSION.*|XDG_VTNR|XDG_SEAT|XDG_RUNTIME_DIR|VSCODE_.*|PROMPT.*|PS1|HIST.*|LS_COLORS|INVOCATION_ID|JOURNAL_.*"
)
"""Variables of a login or a terminal; a training script that reads one of them is not sized anew."""


def key(job: Submission, wishes: Sequence[object]) -> str:
    """Return the name under which the answer to this submission is kept."""
    environ = sorted((name, value) for name, value in job.environ.items() if not _VOLATILE.fullmatch(name))
    script = job.script.hex() if job.script is not None else None
    what = [SCHEMA_VERSION, __version__, job.argv, script, os.getcwd(), environ, list(wishes)]  # noqa: PTH109
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def look_up(name: str, job: Submission, waited_since: float | None = None) -> Decision | None:
    """Return the decision kept under this name if it still holds, else None; whatever is wrong with it is none.

    Who has waited for it, since this time, gets the one that was made meanwhile and no other.
    """
    try:
        kept = json.loads(own_files.read(own_files.cache_folder(_FOLDER) / f"{name}.json", MOST_BYTES))
        age, days = time.time() - kept["made"], kept["days"]
        if age < -_DAY or (age > days * _DAY if waited_since is None else kept["made"] < waited_since):
            return None
        if not unchanged(kept["files"]):
            return None
        return Decision(
            Kind(kept["kind"]),
            job,
            _restored(job, kept["ready"]),
            why=str(kept["why"]),
            error=str(kept["error"]),
            lines=[*map(str, kept["lines"])],
            brief=[*map(str, kept["brief"])],
            known_since=float(kept["made"]),
            retries=tuple(_restored(job, each) for each in kept["retries"]),
            prediction=None if kept["prediction"] is None else prediction.parse(kept["prediction"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(name: str, decision: Decision, files: "Iterable[File]", days: float = MOST_DAYS) -> None:
    """Keep a decision whose dry run read `files`, unless one of them is no longer as it was, or there is no room.

    A file that the dry run wrote before it read it is the job's own, and no file of this machine. What it was sized
    from is not kept: traces are large.
    """
    of_machine = lasting(files)
    if of_machine is None:
        return
    content = {
        "made": time.time(),
        "days": days,
        "files": of_machine,
        "kind": decision.kind,
        "why": decision.why,
        "error": decision.error,
        "ready": _stored(decision.ready, decision.written),
        "retries": [_stored(each, decision.written) for each in decision.retries],
        "lines": list(decision.lines),
        "brief": list(decision.brief),
        "prediction": None if decision.prediction is None else decision.prediction._asdict(),
    }
    with contextlib.suppress(OSError):
        folder = own_files.make(own_files.cache_folder(_FOLDER))
        _prune(folder)
        own_files.write(folder / f"{name}.json", json.dumps(content).encode())


def _stored(job: Submission, written: Submission) -> dict[str, object]:
    """Return a changed job for JSON, with of its environment what is not as in the job that was written."""
    before, after = written.environ, job.environ
    return {
        "argv": job.argv,
        "script": job.script.hex() if job.script is not None else None,
        "set": {k: v for k, v in after.items() if before.get(k) != v},
        "removed": [k for k in before if k not in after],
    }


def _restored(written: Submission, kept: Mapping[str, Any]) -> Submission:
    environ = {k: v for k, v in written.environ.items() if k not in kept["removed"]} | kept["set"]
    script = None if kept["script"] is None else bytes.fromhex(kept["script"])
    return written.but(argv=tuple(map(str, kept["argv"])), environ=environ, script=script)


def lasting(files: "Iterable[File]") -> "list[File] | None":
    """Return what of these is of this machine; None where one of them is not as it was, or not all were seen."""
    first = dict[tuple[str, bool], "File"]()
    for file in files:
        if file.kind == "T":
            return None
        first.setdefault((file.path, file.kind == "I"), file)
    of_machine = [file for file in first.values() if file.kind != "W"]
    return of_machine if unchanged(of_machine) else None


def unchanged(files: "Iterable[File]") -> bool:
    """Whether all of these are as they were."""
    return all(_is_unchanged(*each) for each in files)


def as_it_is(path: Path) -> "File":
    """Return what there is at a path now."""
    from xmem_slurm.trace import File  # noqa: PLC0415 - not to look up what is known

    try:
        status = path.stat()
    except OSError:
        return File("A", 0, 0, str(path))
    return File("D" if stat.S_ISDIR(status.st_mode) else "R", status.st_size, status.st_mtime_ns, str(path))


def _is_unchanged(kind: str, size: int, mtime_ns: int, path: str) -> bool:
    """Whether a path is as it was. Of a folder only the time counts: its size is the file system's affair."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return kind == "A"
    if kind == "A":
        return False
    if kind == "I":
        from xmem_slurm.dryrun.containers import images  # noqa: PLC0415 - few jobs have one

        return images.identity(Path(path)) == size
    return status.st_mtime_ns == mtime_ns and (kind == "D" or status.st_size == size)


def _prune(folder: Path) -> None:
    """Make room: what is too old goes, and the oldest of what is too many."""
    for index, (age, path) in enumerate(own_files.by_age(folder)):
        if age > MOST_DAYS * _DAY or index >= MOST_ANSWERS - 1:
            with contextlib.suppress(OSError):
                path.unlink()
