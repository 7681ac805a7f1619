"""Has this very submission been sized before, and is all that its dry run read still the same?

An answer is kept as JSON in the user's cache directory, under a hash of what is submitted: sbatch's arguments, the
script, the folder, the environment (but for what changes with every login), what is asked of xsbatch, our version.
Options that change neither what a job needs nor what is chosen for it (`IMMATERIAL`) are not in it: they are taken
from who asks. With it stand the files that the dry run read, and how each was as it was read (`evidence`). An answer is
given only if every one is so now: a model that was edited, even while the dry run ran, is never answered from here.

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
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from xmem_slurm import __version__
from xmem_slurm.decision import Decision, Kind
from xmem_slurm.outcomes import prediction
from xmem_slurm.slurm.options import SBATCH
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.submission import evidence
from xmem_slurm.submission.evidence import Evidence

SCHEMA_VERSION = 6
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

_NOT_OF_MEMORY = """
    begin comment dependency error job-name mail-type mail-user nice open-mode output parsable priority quiet verbose
    wckey
"""
IMMATERIAL = frozenset(_NOT_OF_MEMORY.split())
"""sbatch's options that say when a job runs and what people are told of it. Its name counts where what the job reads
has SLURM_JOB_NAME in it (`keep`)."""
_OF_ONE_ANSWER = {f"XMEM_{name}" for name in ("FRESH", "VERBOSE", "HOLD", "REPORT", "HTML", "RECORD", "SUMMARY")}
"""Variables of xsbatch's own that say what is done about an answer, and nothing of what is in it."""
_NOT_IN_KEY = _OF_ONE_ANSWER.union(*(SBATCH.by_name[name].variables for name in IMMATERIAL))

_VOLATILE = re.compile(
    r"_|SHLVL|OLDPWD|COLUMNS|LINES|WINDOWID|DISPLAY|XAUTHORITY|STY|KRB5CCNAME|DBUS_.*|SSH_.*|GPG_.*|TMUX.*|TERM.*"
    r"|XDG_SESSION.*|XDG_VTNR|XDG_SEAT|XDG_RUNTIME_DIR|VSCODE_.*|PROMPT.*|PS1|HIST.*|LS_COLORS|INVOCATION_ID|JOURNAL_.*"
)
"""Variables of a login or a terminal; a training script that reads one of them is not sized anew."""


def key(job: Submission, wishes: Sequence[object]) -> str:
    """Return the name under which the answer to this submission is kept."""
    environ = sorted(
        (name, value)
        for name, value in job.environ.items()
        if name not in _NOT_IN_KEY and not _VOLATILE.fullmatch(name)
    )
    script = job.script.hex() if job.script is not None else None
    words = _words(job, material=True)
    what = [SCHEMA_VERSION, __version__, words, script, os.getcwd(), environ, list(wishes)]  # noqa: PTH109
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _words(job: Submission, *, material: bool) -> list[str]:
    """Return the words of its command line that can matter, or those that cannot; in a heterogeneous job all can."""
    line = job.command_line
    of_word: dict[int, list[bool]] = {}
    for each in line.first_pass if len(line.components) == 1 else ():
        for at in {each.at, each.value_at}:
            of_word.setdefault(at, []).append(each.name in IMMATERIAL)
    return [word for at, word in enumerate(job.argv) if all(of_word.get(at, [False])) != material]


def look_up(name: str, job: Submission, waited_since: float | None = None) -> Decision | None:
    """Return the decision kept under this name if it still holds, else None; whatever is wrong with it is none.

    Who has waited for it, since this time, gets the one that was made meanwhile and no other.
    """
    try:
        kept = json.loads(own_files.read(own_files.cache_folder(_FOLDER) / f"{name}.json", MOST_BYTES))
        age, days = time.time() - kept["made"], kept["days"]
        if age < -_DAY or (age > days * _DAY if waited_since is None else kept["made"] < waited_since):
            return None
        if kept["job_name"] not in (None, job.request.value("job-name") or "") or not evidence.unchanged(_files(kept)):
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


def keep(name: str, decision: Decision, rests_on: Sequence[Evidence] | None, days: float = MOST_DAYS) -> None:
    """Keep a decision with what it rests on, if that is known and there is room.

    What it was sized from is not kept: traces are large.
    """
    if rests_on is None:
        return
    job, name_counts = decision.written, b"SLURM_JOB_NAME"
    reads_name = name_counts in (job.script or b"") or evidence.mentions(rests_on, name_counts)
    by_folder = groupby(sorted(rests_on, key=_folder), _folder)
    content = {
        "made": time.time(),
        "days": days,
        "files": {
            folder: [[file.path[len(folder) :], *file[:3], *file[4:]] for file in its] for folder, its in by_folder
        },
        "job_name": (job.request.value("job-name") or "") if reads_name else None,
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


def _files(kept: Mapping[str, Any]) -> list[Evidence]:
    return [
        Evidence(kind, size, mtime_ns, folder + name, digest, names)
        for folder, its in kept["files"].items()
        for name, kind, size, mtime_ns, digest, names in its
    ]


def _folder(file: Evidence) -> str:
    return file.path[: file.path.rfind("/") + 1]


def _stored(job: Submission, written: Submission) -> dict[str, object]:
    """Return a changed job for JSON, with of its environment what is not as in the job that was written.

    Of its command line what can matter; `only_of` is the one that it is for where more than that was changed.
    """
    before, after = written.environ, job.environ
    same = _words(job, material=False) == _words(written, material=False)
    return {
        "argv": None if job.argv == written.argv else _words(job, material=True) if same else job.argv,
        "only_of": None if same else written.argv,
        "script": job.script.hex() if job.script is not None else None,
        "set": {k: v for k, v in after.items() if before.get(k) != v},
        "removed": [k for k in before if k not in after],
    }


def _restored(written: Submission, kept: Mapping[str, Any]) -> Submission:
    """Return the changed job of who asks.

    Raises:
        ValueError: it is for another command line.
    """
    environ = {k: v for k, v in written.environ.items() if k not in kept["removed"]} | kept["set"]
    script = None if kept["script"] is None else bytes.fromhex(kept["script"])
    argv = written.argv
    if kept["only_of"] is not None:
        if tuple(kept["only_of"]) != written.argv:
            raise ValueError("it is for another command line")
        argv = tuple(map(str, kept["argv"]))
    elif kept["argv"] is not None:
        argv = (*_words(written, material=False), *map(str, kept["argv"]))
    return written.but(argv=argv, environ=environ, script=script)


def _prune(folder: Path) -> None:
    """Make room: what is too old goes, and the oldest of what is too many."""
    for index, (age, path) in enumerate(own_files.by_age(folder)):
        if age > MOST_DAYS * _DAY or index >= MOST_ANSWERS - 1:
            with contextlib.suppress(OSError):
                path.unlink()
