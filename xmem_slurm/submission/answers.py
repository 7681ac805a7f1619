"""What was answered here lately, and does it still hold? The one store of answers, of xsbatch and
of `estimate`.

A record holds the decision of a submission, or what was said of an estimate, or both: an estimate
of xsbatch's can be explained, too. Its name is a hash of what was asked: sbatch's arguments, the
script, the folder, the environment (but for what changes with every login), what is asked of us,
our version. Options that change neither what a job needs nor what is chosen for it (`immaterial`)
are not in it, wherever they are set: they are taken from who asks. Behind the head stand the files
that the dry run read, and how each was as it was read (`evidence`), and the traces, of which
reports are made. An answer is given only if every file is so now, installed packages some seconds
ago (`PACKAGES_SECONDS`): a model that was edited, even while the dry run ran, is never answered
from here.

What was read is known from three sources: the Pythons of the dry run note what they open
(`probe/_xmem/process/files.py`); the words of the batch script, and of the shell scripts that it
names, that are files; the site file and the GPU catalogue. An answer does not last where a script
sources something that cannot be told from here, or where the peak was still growing. That there is
no estimate is an answer, too: nobody waits a second time for it.

Known limitations: files that native code opens by itself, what `module load` reads, and whether a
file exists that was never opened. Answers are therefore given for a week only; --xmem-fresh runs
dry in any case.

This is on the way of jobs that must not wait, so it imports little.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xmem_slurm import __version__
from xmem_slurm.decision import Decision, Kind, Retry
from xmem_slurm.dryrun import evidence
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.errors import XmemError
from xmem_slurm.outcomes import prediction
from xmem_slurm.slurm import immaterial
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state.store import Store, StoredRecord

if TYPE_CHECKING:
    from xmem_slurm.sizing.sizing import Sizing

SCHEMA_VERSION = 10
STORE = Store("answers")
_FILES, _SIZED, _PACKAGES = range(3)
"""The parts of a record: what it rests on, the traces, and what it rests on of installed packages,
which earlier versions kept in the first."""
PACKAGES_SECONDS = 5.0
"""For so long packages are as they were when they were last looked at: they are thousands of files,
and a home on a network file system would be asked for them by each of a hundred submissions at
once."""
PACKAGES_SEEN = Store("packages-seen", most_bytes=1 << 20, most=100)
"""When that was, by a hash of what was looked at: of all jobs that use the same."""
_FILES_OF_TRACES = {"__all__": {"estimate": {"ranks": {"__all__": {"trace": {"files"}}}}}}
"""What a dry run read stands in the first parts."""
_DAY = 86_400
MOST_DAYS = 7
DAYS_WITHOUT_ESTIMATE = 1
"""How long a job goes as it was written without another try..."""
DAYS_UNSEEN = 1 / 24
"""...and how long where it was not seen what the dry run read, so that nothing tells when it would
end otherwise."""
FOR_WHO_WAITS = 0
"""Of an answer that does not last: it is given to those only who were waiting for it."""

_OF_ONE_ANSWER = {
    f"XMEM_{name}" for name in ("FRESH", "VERBOSE", "HOLD", "REPORT", "HTML", "RECORD", "SUMMARY")
}
"""Variables of xsbatch's own that say what is done about an answer, and nothing of what is in
it."""
_NOT_IN_KEY = _OF_ONE_ANSWER | immaterial.VARIABLES


def key(job: Submission, wishes: Sequence[object]) -> str:
    """Return the name under which the answer to this submission is kept."""
    environ = sorted(
        (name, value)
        for name, value in job.environ.items()
        if name not in _NOT_IN_KEY and evidence.can_matter(name)
    )
    script = [part.hex() for part in _parted(job).material]
    words = _words(job, material=True)
    key_parts = [SCHEMA_VERSION, __version__, words, script, os.getcwd(), environ, list(wishes)]  # noqa: PTH109
    return hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()


def _words(job: Submission, *, material: bool) -> list[str]:
    """Return the words of its command line that can matter, or those that cannot; in a
    heterogeneous job all can.
    """
    line = job.command_line
    others = immaterial.words(line.first_pass) if len(line.components) == 1 else ()
    return [word for at, word in enumerate(job.argv) if (at not in others) == material]


def _parted(job: Submission) -> immaterial.Parted:
    """Return its script, taken apart; nothing of one that it has not."""
    script = job.parsed_script
    return immaterial.Parted((), ()) if script is None else immaterial.parted(script)


class Said(NamedTuple):
    """What is said of an estimate: lines, in brief and in full, and the object of `estimate
    --json`.
    """

    brief: Sequence[str]
    full: Sequence[str]
    document: Mapping[str, Any]


class KeptEstimate(NamedTuple):
    """What was said of each component of a job, and of which: `command` as it was typed in
    `folder`.

    It was `made` at that time (seconds since the epoch). `left` says why there is none of the other
    components. `several`: it was a heterogeneous job. `templates` is the site's own folder of them.
    """

    made: float
    command: Sequence[str]
    folder: str
    said: Mapping[int, Said]
    left: Mapping[int, str]
    several: bool
    templates: Path | None
    record: StoredRecord

    def is_of(self, script: str) -> bool:
        """Whether a file of this name was one of its words."""
        return _is_of(script, self.command, self.folder)

    def outdated_by(self) -> str | None:
        """Return a file that has changed since: of those that it rests on, or the script; else
        None.

        Where it is not known what it rests on, of all that the command names.
        """
        rests_on = _files(self.record)
        named = self._named()
        for path in named if rests_on is None else named[:1]:
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_mtime > self.made:
                    return str(path)
        changed = evidence.changed(rests_on or ())
        return None if changed is None else changed.path

    def _named(self) -> Sequence[Path]:
        return _named(self.command, self.folder)

    def sized(self) -> "Mapping[int, Sizing]":
        """Return what it was said of, with the traces.

        Raises:
            XmemError: it cannot be read.
        """
        try:
            sized: Mapping[int, Sizing] = _form().validate_json(self.record.part(_SIZED))
        except ValueError as error:
            message = "what is kept of this estimate cannot be read; --fresh makes it again"
            raise XmemError(message) from error
        return sized


class Unanswered(NamedTuple):
    """A submission of which nothing was estimated: when, what was typed, and why; `refused` where
    it was not submitted, either.
    """

    made: float
    command: Sequence[str]
    why: str
    refused: bool = False


def _is_of(script: str, command: Sequence[str], folder: str) -> bool:
    """Whether a file of this name was one of a command's words."""
    wanted = Path(script).resolve()
    return any(path.resolve() == wanted for path in _named(command, folder))


def _named(command: Sequence[str], folder: str) -> Sequence[Path]:
    words = dict.fromkeys(part for word in command for part in (word, *word.split()))
    return [Path(folder, word) for word in words]


def look_up(name: str, job: Submission, waited_since: float | None = None) -> Decision | None:
    """Return the decision kept under this name if it still holds, else None; whatever is wrong with
    it is none.

    Who has waited for it, since this time, gets the one that was made meanwhile and no other.
    """
    try:
        record = STORE.read(name)
        if record is None or record.head["decision"] is None:
            return None
        time_made, kept = float(record.head["made"]), record.head["decision"]
        if waited_since is not None and time_made < waited_since:
            return None
        if not _holds(record, job, ever=waited_since is not None):
            return None
        decision = Decision(
            Kind(kept["kind"]),
            job,
            _restored(job, kept["ready"]),
            why=str(kept["why"]),
            error=str(kept["error"]),
            lines=[*map(str, kept["lines"])],
            brief=[*map(str, kept["brief"])],
            known_since=time_made,
            retries=tuple(_retry(job, stored) for stored in kept["retries"]),
            prediction=_predicted(kept["prediction"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    record.use()
    return decision


def look_up_estimate(name: str, job: Submission) -> KeptEstimate | None:
    """Return the estimate kept under this name if it still holds for this job, else None; whatever
    is wrong with it is none.
    """
    record = STORE.read(name)
    try:
        if record is None or not _holds(record, job):
            return None
        kept = _estimate(record)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if kept is not None:
        record.use()
    return kept


def newest() -> Iterator[KeptEstimate]:
    """Yield the estimates that are kept, also those that do not hold any more, what was said last
    first.
    """
    for record in STORE.newest():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            kept = _estimate(record)
            if kept is not None:
                yield kept


def unanswered(script: str | None) -> Unanswered | None:
    """Return the last submission, of a script or of any, where there was no estimate of it; None
    where there was one.
    """
    for record in STORE.newest():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            head = record.head
            words = [*map(str, head["command"])]
            if script is not None and not _is_of(script, words, str(head["folder"])):
                continue
            if head["said"] is not None:
                return None
            decision = head["decision"]
            refused = decision["kind"] == Kind.REFUSED
            return Unanswered(float(head["made"]), words, str(decision["why"]), refused)
    return None


def find(command: Sequence[str], folder: Path) -> KeptEstimate | None:
    """Return the newest estimate of this command in a folder."""
    words = [*command]
    return next(
        (
            estimate
            for estimate in newest()
            if estimate.command == words and estimate.folder == str(folder)
        ),
        None,
    )


def keep_decision(
    name: str,
    decision: Decision,
    rests_on: Sequence[Evidence] | None,
    days: float = MOST_DAYS,
    *,
    sized: "Mapping[int, Sizing] | None" = None,
    templates: Path | None = None,
) -> None:
    """Keep a decision with what it rests on, where that is known, and with what it was sized from;
    if there is room. One that has neither answers nobody.
    """
    if rests_on is None and not sized:
        return
    job, texts = decision.written, None
    if sized:
        with contextlib.suppress(Exception):  # no submission fails by what is said of it again
            script = job.command_line.script
            texts = {component: _texts(sizing, script) for component, sizing in sized.items()}
    _keep(
        name,
        job,
        rests_on,
        days=days,
        decision=_as_kept(decision),
        texts=texts,
        unsized=decision.left,
        templates=templates,
        sized=sized if texts else None,
    )


def keep_unanswered(decision: Decision) -> None:
    """Keep why there is no estimate of a submission, for who asks that: it answers no other."""
    job = decision.written
    with contextlib.suppress(Exception):  # the job goes on without that
        _keep(
            key(job, ["unanswered"]),
            job,
            None,
            days=FOR_WHO_WAITS,
            decision=_as_kept(decision),
            texts=None,
            unsized={},
            templates=None,
            sized=None,
        )


def _as_kept(decision: Decision) -> Mapping[str, object]:
    """Return a decision as its record has it."""
    return {
        "kind": decision.kind,
        "why": decision.why,
        "error": decision.error,
        "ready": _stored(decision.ready, decision.written),
        "retries": [
            {
                "ready": _stored(retry.ready, decision.written),
                "prediction": None if retry.prediction is None else retry.prediction._asdict(),
            }
            for retry in decision.retries
        ],
        "lines": list(decision.lines),
        "brief": list(decision.brief),
        "prediction": None if decision.prediction is None else decision.prediction._asdict(),
    }


def keep_estimate(
    name: str,
    job: Submission,
    sized: "Mapping[int, Sizing]",
    unsized: Mapping[int, str],
    *,
    rests_on: Sequence[Evidence] | None,
    templates: Path | None = None,
) -> Mapping[int, Said]:
    """Keep what was estimated, if there is room for it; return what is said of it."""
    texts = {
        component: _texts(sizing, job.command_line.script) for component, sizing in sized.items()
    }
    _keep(
        name,
        job,
        rests_on,
        days=MOST_DAYS,
        decision=None,
        texts=texts,
        unsized=unsized,
        templates=templates,
        sized=sized,
    )
    return texts


def _keep(
    name: str,
    job: Submission,
    rests_on: Sequence[Evidence] | None,
    *,
    days: float,
    decision: Mapping[str, object] | None,
    texts: Mapping[int, Said] | None,
    unsized: Mapping[int, str],
    templates: Path | None,
    sized: "Mapping[int, Sizing] | None",
) -> None:
    """Keep a record of a decision, or of what was said of an estimate, or both."""
    reads = _reads(job, rests_on or (), sized)
    head = {
        "version": __version__,
        "made": time.time(),
        "days": days,
        "command": job.argv,
        "folder": os.getcwd(),  # noqa: PTH109 - as text
        "several": bool(job.request.other_components),
        "reads": reads,
        "typed": _typed(job, reads),
        "decision": decision,
        "said": texts,
        "left": unsized,
        "templates": None if templates is None else str(templates),
    }
    own, of_packages = list[Evidence](), list[Evidence]()
    for file in rests_on or ():
        (of_packages if evidence.is_of_packages(file) else own).append(file)
    with contextlib.suppress(ValueError):  # a name that is no text
        parts = [
            json.dumps(None if rests_on is None else _by_folder(own)).encode(),
            _form().dump_json(sized, exclude=_FILES_OF_TRACES) if sized else b"",
            json.dumps(_by_folder(of_packages)).encode(),
        ]
        STORE.write(name, head, parts)


def _reads(
    job: Submission, rests_on: Sequence[Evidence], sized: "Mapping[int, Sizing] | None"
) -> str | None:
    """Return what the job reads of what else cannot matter: its `name`, or `all` that Slurm says of
    it, where it asks Slurm.
    """
    script = job.script or (job.command_line.wrap or "").encode(errors="surrogateescape")
    asked = any(each.estimate.asks_for_script for each in sized.values()) if sized else None
    if evidence.asks_slurm(rests_on, script, asked=asked):
        return "all"
    return "name" if evidence.mentions(rests_on, b"SLURM_JOB_NAME", script) else None


def _typed(job: Submission, reads: str | None) -> Sequence[str]:
    """Return what of a submission counts for one that `reads` that."""
    if reads == "all":
        in_script = [part.hex() for part in _parted(job).immaterial]
        variables = [job.environ.get(name, "") for name in sorted(immaterial.VARIABLES)]
        return [*_words(job, material=False), *in_script, *variables]
    return [job.request.value("job-name") or ""] if reads == "name" else []


def _holds(record: StoredRecord, job: Submission, *, ever: bool = False) -> bool:
    """Whether what an answer rests on is as it was, and what this job reads of itself; and it is
    not too old, if it does not hold `ever`.

    Raises:
        ValueError, KeyError, TypeError: it cannot be read.
    """
    if record.head.get("typed", []) != _typed(job, record.head.get("reads")):
        return False  # earlier forms had neither
    now = time.time()
    age = now - float(record.head["made"])
    if not ever and not -_DAY <= age <= float(record.head["days"]) * _DAY:
        return False
    packages = hashlib.sha256(b"".join(record.packed[_PACKAGES:])).hexdigest()
    seen = PACKAGES_SEEN.read(packages)
    seen_lately = seen is not None and 0 <= now - float(seen.head["at"]) < PACKAGES_SECONDS
    files = _files(record, packages=not seen_lately)
    if files is None or not evidence.unchanged(files):
        return False
    if not seen_lately:
        PACKAGES_SEEN.write(packages, {"at": now})
    return True


def _estimate(record: StoredRecord) -> KeptEstimate | None:
    """Return what was said of an estimate; None where nothing was, or another version of ours said
    it.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it cannot be read.
    """
    head = record.head
    if head["version"] != __version__ or head["said"] is None:
        return None
    return KeptEstimate(
        float(head["made"]),
        [*map(str, head["command"])],
        str(head["folder"]),
        {int(number): Said(*texts) for number, texts in head["said"].items()},
        {int(number): str(why) for number, why in head["left"].items()},
        bool(head["several"]),
        None if head["templates"] is None else Path(head["templates"]),
        record,
    )


def _texts(sized: "Sizing", script: str | None) -> Said:
    from xmem_slurm.report import json as json_report  # noqa: PLC0415 - as `_form`
    from xmem_slurm.report import terminal  # noqa: PLC0415
    from xmem_slurm.report.largest import at_peak  # noqa: PLC0415
    from xmem_slurm.report.options import outlooks, remedy  # noqa: PLC0415

    options = terminal.option_lines(outlooks(sized), remedy(sized), sized.advice)
    estimate, requested = sized.estimate, sized.host_requested
    full = terminal.estimate_lines(estimate, at_peak(estimate.largest), requested)
    killed = filter(None, [terminal.may_be_killed(estimate, requested)])
    brief = [*terminal.brief_lines(sized, script), *killed, *options]
    return Said(brief, [*full, *options], json_report.estimate_object(sized))


def _form() -> Any:
    """Return how what is estimated becomes JSON and is read again; who is only told what was said
    needs none of it.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415

    from xmem_slurm.sizing.sizing import Sizing  # noqa: PLC0415

    return TypeAdapter(Mapping[int, Sizing])


def _by_folder(files: Sequence[Evidence]) -> Mapping[str, Sequence[object]]:
    """Return files as they are kept, each folder's path once."""
    return {
        folder: [[file.path[len(folder) :], *file[:3], *file[4:]] for file in members]
        for folder, members in groupby(sorted(files, key=_folder), _folder)
    }


def _files(record: StoredRecord, *, packages: bool = True) -> list[Evidence] | None:
    """Return what an answer rests on, or what of it is in no package; None where it does not last.

    Raises:
        ValueError, TypeError: it cannot be read.
    """
    kept = [json.loads(record.part(_FILES))]
    if kept[0] is None:
        return None
    if packages and len(record.packed) > _PACKAGES:
        kept.append(json.loads(record.part(_PACKAGES)))
    return [
        Evidence(kind, size, mtime_ns, folder + name, digest, names)
        for by_folder in kept
        for folder, members in by_folder.items()
        for name, kind, size, mtime_ns, digest, names in members
    ]


def _folder(file: Evidence) -> str:
    return file.path[: file.path.rfind("/") + 1]


def _stored(job: Submission, written: Submission) -> dict[str, object]:
    """Return a changed job for JSON, with of its environment what is not as in the job that was
    written.

    Of its command line and its script what can matter; `only_of` is the one that it is for where
    more than that was changed.
    """
    before, after = written.environ, job.environ
    same = _words(job, material=False) == _words(written, material=False)
    argv: Sequence[str] | None = _words(job, material=True) if same else job.argv
    if job.argv == written.argv:
        argv = None
    return {
        "argv": argv,
        "only_of": None if same else written.argv,
        "script": _stored_script(job, written),
        "set": {k: v for k, v in after.items() if before.get(k) != v},
        "removed": [k for k in before if k not in after],
    }


def _stored_script(job: Submission, written: Submission) -> Mapping[str, object] | None:
    """Return a changed job's script for JSON; None where it is the one that was written."""
    if job.script == written.script:
        return None
    parts = _parted(job)
    same = parts.immaterial == _parted(written).immaterial
    kept = parts.material if same else [job.script or b""]
    only_of = None if same else (written.script or b"").hex()
    return {"parts": [part.hex() for part in kept], "only_of": only_of}


def _restored_script(written: Submission, kept: Mapping[str, Any] | None) -> bytes | None:
    """Return the script of the changed job of who asks.

    Raises:
        ValueError: it is for another script.
    """
    if kept is None:
        return written.script
    parts = [bytes.fromhex(part) for part in kept["parts"]]
    if kept["only_of"] is None:
        return immaterial.joined(parts, _parted(written).immaterial)
    if bytes.fromhex(kept["only_of"]) != written.script:
        raise ValueError("it is for another script")
    return b"".join(parts)


def _retry(written: Submission, kept: Mapping[str, Any]) -> Retry:
    return Retry(_restored(written, kept["ready"]), _predicted(kept["prediction"]))


def _predicted(kept: Mapping[str, Any] | None) -> prediction.Prediction | None:
    return None if kept is None else prediction.parse(kept)


def _restored(written: Submission, kept: Mapping[str, Any]) -> Submission:
    """Return the changed job of who asks.

    Raises:
        ValueError: it is for another command line, or another script.
    """
    environ = {k: v for k, v in written.environ.items() if k not in kept["removed"]} | kept["set"]
    argv = written.argv
    if kept["only_of"] is not None:
        if tuple(kept["only_of"]) != written.argv:
            raise ValueError("it is for another command line")
        argv = tuple(map(str, kept["argv"]))
    elif kept["argv"] is not None:
        argv = (*_words(written, material=False), *map(str, kept["argv"]))
    script = _restored_script(written, kept["script"])
    return written.but(argv=argv, environ=environ, script=script)
