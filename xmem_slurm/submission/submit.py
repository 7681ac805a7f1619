"""Submit a job: read it, see what its answer is (`answer`), and become the real sbatch.

Whatever goes wrong on the way, the job is submitted as it was written, with one line on stderr that
says why. stdout, exit code and signals are sbatch's own, because the last act is exec. Imports here
are few: a job without a GPU must not wait for pydantic or jinja2.
"""

import contextlib
import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from xmem_slurm.cluster import client
from xmem_slurm.decision import Decision, Kind, stopped_by
from xmem_slurm.errors import SilentPlace, SlurmError, XmemError
from xmem_slurm.report import columns, decided
from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files, signals, silent
from xmem_slurm.submission import handover, settings
from xmem_slurm.submission.answer import OWN_WORDS, Wishes, answer, own_words


def submit(written: Submission, wishes: Wishes) -> NoReturn:
    """Submit as sbatch would, with the GPU request made right; does not return. The script is yet
    to be read.

    Raises:
        SlurmError: there is no sbatch to hand the job to.
    """
    sbatch = _sbatch(written, wishes)
    if "XMEM_ACTIVE" in written.environ or (wishes.off and not wishes.dry_run):
        _hand_over(sbatch, written)
    began = time.monotonic()
    with signals.clearing_up():
        try:
            written = _read(written, sbatch)
            _see_that_places_answer(written, wishes)
            wishes = _settled(wishes, written)
            quiet = written.command_line.has("quiet")
            decision = answer(written, wishes, lambda line: None if quiet else tell([line]))
            decision = _tried(decision, sbatch) if wishes.dry_run else _accepted(decision, sbatch)
        except Exception as error:  # a fault of ours must not cost the user a job
            decision = stopped_by(error, written)
    only_asks = _only_asks(written)
    is_queued = not (wishes.dry_run or only_asks)
    decision = _held(decision) if wishes.hold and not only_asks else decision
    if is_queued and decision.error != SilentPlace.__name__:
        decision = _recorded(decision, wishes)
    _tell_of(decision, wishes, is_queued=is_queued)
    with contextlib.suppress(Exception):  # no submission fails by its report
        _write_reports(decision, wishes)
    refused = decision.kind is Kind.REFUSED
    if wishes.dry_run and not refused:
        _show(decision)
    if is_queued:
        _record(decision, wishes, began)
    if refused:
        raise SystemExit(1)
    if wishes.retry and is_queued and decision.kind is not Kind.LEFT_ALONE:
        _retry(sbatch, decision, wishes)
    _hand_over(sbatch, decision.ready)


def _only_asks(job: Submission) -> bool:
    """Whether sbatch will queue nothing of it; of what cannot be read it says that itself."""
    with contextlib.suppress(XmemError):
        return job.only_asks
    return False


def _see_that_places_answer(job: Submission, wishes: Wishes) -> None:
    """See that what is read and written for a job that asks for a GPU answers: one look at all.

    For all others it is the site file alone, of which `places` sees that.

    Raises:
        SilentPlace: something does not.
    """
    if wishes.off or refusal(job) is not None or not job.request.asks_for_gpu:
        return
    from xmem_slurm.site import places  # noqa: PLC0415

    named = wishes.site or job.environ.get("XMEM_SITE")
    site_files = (Path(named),) if named else places.site_places()
    reports = [Path(name) for name in (wishes.report, wishes.html) if name]
    own_places = [
        settings.user_file(),
        own_files.cache_folder("answers"),
        own_files.record_folder("jobs"),
    ]
    silent.require_answers([*site_files, *own_places, *reports])


def _retry(sbatch: Path, decision: Decision, wishes: Wishes) -> None:
    """Submit the job and those for the case that it runs out of GPU memory; without them it is
    handed over as ever.
    """
    from xmem_slurm.submission import recording, retrying  # noqa: PLC0415

    try:
        reason = retrying.why_not(decision)
        larger = [
            decision._replace(ready=ready, prediction=predicted)
            for ready, predicted in decision.retries
        ]
        retries = [recording.recorded(retry, wishes).ready for retry in larger]
    except Exception as error:  # a fault of ours must not cost the user a job
        reason, retries = f"{type(error).__name__}: {error}", []
    if reason is not None:
        tell([f"there is no retry of this job: {reason}"])
        return
    raise SystemExit(retrying.submit(sbatch, decision.ready, retries, tell))


def _sbatch(job: Submission, wishes: Wishes) -> Path:
    """Return the real sbatch; who only looks needs none."""
    try:
        return client.find_sbatch(job.environ)
    except SlurmError:
        if not wishes.dry_run:
            raise
        return Path("sbatch")


def _settled(wishes: Wishes, job: Submission) -> Wishes:
    """Add what the job's script and the user's file say, and tell what is wrong there."""
    wishes, complaints = settings.settled(wishes, job)
    if not job.command_line.has("quiet"):
        tell(complaints)
    return wishes


def _accepted(decision: Decision, sbatch: Path) -> Decision:
    """Keep the changed script where the job's record can point at it, and ask Slurm whether it
    would take the job.

    Raises:
        SlurmError: it would not.
    """
    decision = _without_own_lines(decision)
    ready = _with_script_kept(decision.ready, decision.written)
    if ready != decision.written:
        # else it is read only once
        client.check_accepted(sbatch, ready, by_file=_descriptor(ready) is None)
    return decision._replace(ready=ready)


def _without_own_lines(decision: Decision) -> Decision:
    """Take the `#XMEM` lines out of what Slurm gets of a script that was changed: they are for us.

    A script that is printed or written keeps them, as whoever submits it later has said the same
    to xsbatch, or to the filter in every sbatch.
    """

    def without(job: Submission) -> Submission:
        # to read a script takes time, of which a job whose answer is known has little
        if job.script == decision.written.script or b"#XMEM" not in (job.script or b""):
            return job
        script = job.parsed_script
        assert script is not None
        return job.with_script(scripts.without_own_lines(script))

    retries = [retry._replace(ready=without(retry.ready)) for retry in decision.retries]
    return decision._replace(ready=without(decision.ready), retries=retries)


def _held(decision: Decision) -> Decision:
    """Have a job that could not be sized wait for its user's word; one that cannot be read sbatch
    refuses itself.
    """
    if decision.kind not in (Kind.NOT_ESTIMATED, Kind.FAILED):
        return decision
    with contextlib.suppress(Exception):
        if "hold" in decision.written.request.settings:
            return decision
    held = decision.ready.but(argv=("--hold", *decision.ready.argv))
    return decision._replace(ready=held).noting(
        "it is held; `scontrol release JOB_ID`, with the number below, lets it run"
    )


def _tried(decision: Decision, sbatch: Path) -> Decision:
    """Add to what is shown, and not submitted, what Slurm says of it; what it refuses would go as
    it was written.
    """
    if decision.kind is Kind.LEFT_ALONE:
        return decision
    words = client.refused(sbatch, decision.ready) if sbatch.is_file() else client.NO_SBATCH
    if words is None:
        return decision
    if client.is_no_cluster(words):
        return decision.noting(f"there is no cluster here ({words})")
    changed = decision.ready != decision.written
    subject = "the changed request, and it would be submitted as written" if changed else "it"
    return decision._replace(ready=decision.written).noting(
        f"Slurm would refuse {subject} ({words})"
    )


def _write_reports(decision: Decision, wishes: Wishes) -> None:
    """Write the reports that are asked for, after all has been told: a line says where each is, or
    why it is not.
    """
    sized = {index: part.sizing for index, part in decision.parts.items()}
    if not sized or not (wishes.report or wishes.html):
        return
    from xmem_slurm.report import files, html  # noqa: PLC0415
    from xmem_slurm.site import loading, places  # noqa: PLC0415

    templates = None
    with contextlib.suppress(XmemError):
        templates = loading.load_site(
            places.site_file(wishes.site, decision.written.environ)
        ).templates
    for name, writer in ((wishes.report, None), (wishes.html, html.write)):
        failure = files.failure(Path(name), sized, templates, writer) if name else None
        if failure or (name and not decision.written.command_line.has("quiet")):
            tell([failure or f"report: {name}"])


def _recorded(decision: Decision, wishes: Wishes) -> Decision:
    """Have what the job uses recorded, where that is wanted: no submission fails by it."""
    with contextlib.suppress(Exception):
        if decision.written.request.asks_for_gpu:
            from xmem_slurm.submission import recording  # noqa: PLC0415

            return recording.recorded(recording.sampled(decision, wishes), wishes)
    return decision


def _tell_of(decision: Decision, wishes: Wishes, *, is_queued: bool) -> None:
    """Tell the user what was decided; with --quiet only what an error of this submission kept us
    from.
    """
    written = decision.written
    quiet, refused = written.command_line.has("quiet"), decision.kind is Kind.REFUSED
    if not (quiet or refused):
        tell(unknown_words(written))
    stopped = refused or (decision.error and decision.known_since is None)
    if decision.kind is not Kind.LEFT_ALONE and (stopped or not quiet):
        lines = decided.lines(decision, dry_run=not is_queued, verbose=wishes.verbose)
        tell([decided.by_options(line) for line in lines])


def _record(decision: Decision, wishes: Wishes, began: float) -> None:
    """Write the site's line on what was decided, where the site wants one and something was."""
    from xmem_slurm.site import places  # noqa: PLC0415

    written = decision.written
    with contextlib.suppress(Exception):  # no submission fails by its record
        nobody_s = decision.kind is Kind.LEFT_ALONE and not written.request.asks_for_gpu
        if nobody_s or "off" in own_words(written):
            return
        tables = places.tables(wishes.site, written.environ, b"audit")
        if "audit" in tables:
            from xmem_slurm.report import audit  # noqa: PLC0415

            audit.record_apart(tables, "xsbatch", written, audit.outcome(decision), began=began)


def _read(job: Submission, sbatch: Path) -> Submission:
    """Return the job with its script's bytes; None of them for --wrap, and for what need not or
    cannot be read.

    Where an option is not sbatch's own, the site's plugins are asked for theirs: its value may look
    like the script.
    """
    if job.command_line.unknown:
        job = job.but(plugins=client.plugin_options(sbatch))
    command_line = job.command_line
    if command_line.wrap is not None:
        return job
    if command_line.reads_stdin:
        return job.but(script=_read_stdin(job))
    path = client.find_script(job)
    if path is None or not _is_readable(path):
        return job
    job = job.but(script=path.read_bytes())
    script = job.parsed_script if refusal(job) is None else None
    if script is not None and script.unknown and not job.plugins:
        with contextlib.suppress(SlurmError):  # what was read is not lost over that
            job = job.but(plugins=client.plugin_options(sbatch))
    return job


def _read_stdin(job: Submission) -> bytes | None:
    """Read the script; None where nobody could, or where sbatch will refuse the options before a
    user has typed it.
    """
    if sys.stdin is None:
        return None
    if sys.stdin.isatty() and (job.command_line.unknown or refusal(job) is not None):
        return None
    return sys.stdin.buffer.read()


def _is_readable(path: Path) -> bool:
    """Whether there is a script of reasonable size to be read; where not, sbatch has its own words
    for it.
    """
    status = path.stat()
    if stat.S_ISFIFO(status.st_mode):
        return True
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size <= client.MOST_SCRIPT_BYTES
        and os.access(path, os.R_OK)
    )


def unknown_words(job: Submission) -> list[str]:
    """Return what is to be said of #XMEM words that mean nothing."""
    if job.script is None or b"#XMEM" not in job.script or refusal(job) is not None:
        return []
    words = own_words(job)
    return [
        f"line {n} of the script: #XMEM {word}: no such word{_nearest(word)}"
        for word, n in words.items()
        if not (word in OWN_WORDS or settings.is_setting(word))
    ]


def _nearest(word: str) -> str:
    import difflib  # noqa: PLC0415 - of a wrong word alone

    name, equals, value = word.partition("=")
    near = difflib.get_close_matches(name, [*OWN_WORDS, *settings.ANYWHERE], n=1)
    return f"; did you mean {near[0]}{equals}{value}?" if near and near[0] != name else ""


_PREFIX = "xsbatch: "


def tell(lines: Sequence[str], prefix: str = _PREFIX) -> None:
    """Write messages on stderr, in lines that fit there."""
    _write(columns.broken(lines, columns.width(2) - len(prefix)), prefix)


def _write(lines: Sequence[str], prefix: str = "") -> None:
    """Write on stderr, if there is one and somebody still reads it: a job is not lost over that."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.writelines(f"{prefix}{line}\n" for line in lines)
            sys.stderr.flush()


def _show(decision: Decision) -> NoReturn:
    """Print a script that plain sbatch makes the same job of; on stderr what is changed in it, and
    how to submit it.
    """
    import shlex  # noqa: PLC0415

    from xmem_slurm.rewriting import folding  # noqa: PLC0415

    written, job = decision.written, decision.ready
    refused = refusal(written)
    if refused is not None or (job.script is None and job.command_line.wrap is None):
        tell([f"sbatch would refuse this job: {refused or 'its script cannot be read'}"])
        raise SystemExit(1)
    folded = folding.fold(job, written.environ)
    if not written.command_line.has("quiet"):
        _write(folding.differences(written, job, folded))
        why = f" ({folded.reason})" if folded.reason is not None else ""
        by = f"saved as {folding.FILE}, this is submitted by: {shlex.join(folded.words)}{why}"
        _write([f"nothing was submitted; {by}"], _PREFIX)  # a command is copied: it is not broken
    handover.die_of_broken_pipe()
    sys.stdout.buffer.write(folded.script)
    sys.stdout.flush()
    raise SystemExit(0)


def _with_script_kept(job: Submission, written: Submission) -> Submission:
    """Let a script file that was changed go by a copy of its own name: the user's file is never
    touched.

    So does one in a named pipe, whose content is gone from there. One that is named by its
    descriptor (`/dev/fd/63`, as a shell writes `<(command)`) is put back there, by `_hand_over`.
    """
    index = job.command_line.script_index
    if index is None or job.script is None or _descriptor(job) is not None:
        return job
    if job.script == written.script and not _is_pipe(job):
        return job
    from xmem_slurm.submission import changed_scripts  # noqa: PLC0415

    return _with_path(
        job, str(changed_scripts.keep(job.argv[index].rpartition("/")[2], job.script))
    )


def _with_path(job: Submission, path: str) -> Submission:
    index = job.command_line.script_index
    assert index is not None
    return job.but(argv=(*job.argv[:index], path, *job.argv[index + 1 :]))


def _hand_over(sbatch: Path, job: Submission) -> NoReturn:
    """Become sbatch, with a script that can be read only once put back where it was read."""
    if job.script is not None:
        if _descriptor(job) is None and _is_pipe(job):
            job = _with_pipe_kept(job)
        descriptor = _descriptor(job)
        if descriptor is not None:
            handover.replay(job.script or b"", descriptor)
    handover.become(sbatch, job.argv, client.guarded(job.environ, sbatch))


def _with_pipe_kept(job: Submission) -> Submission:
    """Let a script that was read from a named pipe go by a copy of its own name; where there is
    nowhere to keep one, by a descriptor, from which the job has its name then.
    """
    try:
        return _with_script_kept(job, job)
    except Exception:  # a fault of ours must not cost the user a job
        return _with_path(job, f"/dev/fd/{os.memfd_create('xsbatch')}")


def _descriptor(job: Submission) -> int | None:
    """Return the descriptor of ours from which sbatch reads the script; None where it reads a file
    of that name.
    """
    line = job.command_line
    if line.reads_stdin or line.script == "/dev/stdin":
        return 0
    folder, _, number = (line.script or "").rpartition("/")
    return int(number) if folder in ("/dev/fd", "/proc/self/fd") and number.isdecimal() else None


def _is_pipe(job: Submission) -> bool:
    path = client.find_script(job)
    return path is not None and path.is_fifo()
