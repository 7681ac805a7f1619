"""What should the site-wide filter change in the job that an sbatch, srun or salloc is about to
submit?

Slurm's cli_filter hook (`templates/hooks/cli_filter.lua.j2`) runs inside those and calls `start`,
which calls `main`. The answer is lines `option=value` for the hook to set, and a last line `end`;
or `refuse`, where the site wants no such job, and `strict`, where its user wants none that cannot
run.

Not looked at: what `caller` has no job for, heterogeneous jobs (the hook is called for each
component, with no word of the others), `--test-only`, jobs of other users (`--uid`), and what
sbatch will refuse. An answer that is kept (`known`) rests on the site file, too: where it holds,
that file need not be checked again.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from xmem_slurm.cluster import client
from xmem_slurm.decision import Decision, Kind, stopped_by
from xmem_slurm.errors import UsageError
from xmem_slurm.filter import detached
from xmem_slurm.filter.caller import Caller, caller_of, has_ended
from xmem_slurm.filter.detached import Answer
from xmem_slurm.report import audit, decided
from xmem_slurm.rewriting import folding, job_steps
from xmem_slurm.site import coverage, places
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import GPU_OPTIONS, MEMORY_OPTIONS
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import signals
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Tell, Wishes, own_words
from xmem_slurm.submission.answer import answer as answer_to
from xmem_slurm.submission.submit import tell as tell_user
from xmem_slurm.submission.submit import unknown_words

_SETTABLE = ("constraint", *GPU_OPTIONS, *MEMORY_OPTIONS)
_PREFIX = "xmem-slurm: "
_ANSWER_SECONDS = 2.0
"""Of the time that the hook waits, what is left for everything that is not a dry run..."""
_LAST_SECONDS = 1.0
"""...and for the last word, where there is no other."""
_NO_JOB = Submission((), {}, None)
"""Stands for what could not be read."""


def main(
    site_file: str, process: int, tables: coverage.Tables, began: float, seconds: float
) -> None:
    """Print the answer for the submission of this process id; whatever goes wrong is one line for
    its user.

    `tables` are the site file's, empty where they could not be read. The hook `began` to wait at
    this time of the monotonic clock, and does so for so many `seconds` at most. It has its answer
    before the site has its record: what came too late was none. What has ended while its hook
    waited submits nothing, and there is no record of it.
    """
    with signals.clearing_up():  # the hook's time may be up
        caller: Caller | None = None
        try:
            caller = caller_of(process, os.environ)
            looked_at = caller is not None and _is_covered(caller, tables)
        except Exception as error:
            # of what could not be read nothing is known but that it went as it was written
            answer, command = _stopped_by(error), "" if caller is None else caller.command
            _give(answer)
            if not has_ended(process):
                audit.record(tables, command, _NO_JOB, answer.outcome, began=began)
            return
        if caller is None or not looked_at:
            _give(Answer())
            return
        waits_until = began + seconds
        seconds = min(seconds, places.seconds(tables, "filter", "seconds", places.FILTER_SECONDS))
        answer = _whatever_happens(
            lambda: _answer(site_file, caller, process, tables, began + seconds)
        )
        if has_ended(process) and time.monotonic() < waits_until:
            return
        if not _give(answer):
            answer = _late(caller.submission)
        audit.record(tables, caller.command, caller.submission, answer.outcome, began=began)


def _give(answer: Answer) -> bool:
    """Hand the hook its answer; False where it does not wait any more."""
    changes = [f"{name}={value}" for name, value in answer.changes.items()]
    try:
        _tell(*answer.lines)
        sys.stdout.writelines(f"{line}\n" for line in (*changes, answer.last))
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _tell(*lines: str) -> None:
    """Tell the user, by the hook, which hands on what begins like this: so does every line of a
    message.
    """
    tell_user(lines, _PREFIX)


def _whatever_happens(find: Callable[[], Answer]) -> Answer:
    try:
        return find()
    except Exception as error:  # a user of plain sbatch did not ask for a traceback
        return _stopped_by(error)


def _stopped_by(error: Exception) -> Answer:
    decision = stopped_by(error, _NO_JOB)
    last = "refuse" if decision.kind is Kind.REFUSED else "end"
    return Answer(lines=decided.lines(decision), last=last, outcome=audit.outcome(decision))


def _late(job: Submission) -> Answer:
    decision = Decision(Kind.LATE, job, job)
    return Answer(lines=decided.lines(decision), outcome=audit.outcome(decision))


def _answer(
    site_file: str, caller: Caller, process: int, tables: coverage.Tables, until: float
) -> Answer:
    """Return what to change in the job: what is known of it already, else what sizing it says in
    time.
    """
    from xmem_slurm.submission import answers  # noqa: PLC0415 - not for jobs that are left alone

    job = caller.submission
    own_settings, complaints = settings.effective(job)
    wanted = settings.values(
        {name: each for name, each in own_settings.items() if name in settings.BEHIND_SBATCH}
    )
    _tell(*complaints, *unknown_words(job))
    name = answers.key(job, ["filter", site_file, caller.command, sorted(wanted.items())])
    kept = None if _is_set(job, "XMEM_FRESH") else answers.look_up(name, job)
    if kept is not None:
        return _by_options(kept)

    def find(tell: Tell) -> Answer:
        answer = _whatever_happens(
            lambda: _by_options(
                answer_to(job, _wishes(site_file, caller, tables, until, wanted), tell, name)
            )
        )
        if answer.last == "refuse" and wanted.get("strict"):
            return answer._replace(last="strict")
        return answer

    return detached.ask(find, process, until - _LAST_SECONDS, _tell) or _late(job)


def _by_options(decision: Decision) -> Answer:
    """Return what the hook is to do by a decision.

    Raises:
        UsageError, SlurmError: the changed job cannot be had in this way.
    """
    changes = _changes(decision.written, decision.ready)
    if changes:
        client.check_accepted(client.find_sbatch(decision.written.environ), decision.ready)
    return Answer(changes, decided.lines(decision), "end", audit.outcome(decision))


def _is_covered(caller: Caller, tables: coverage.Tables) -> bool:
    """Whether the site wants the job to be looked at, and its owner does not want it left alone."""
    job, request = caller.submission, caller.submission.request
    comment = (request.value("comment") or "").split()
    words = {
        *own_words(job),
        *(word.removeprefix("xmem:") for word in comment if word.startswith("xmem:")),
    }
    if (
        request.other_components
        or job.command_line.has("test-only")
        or _is_set(job, "XMEM_OFF")
        or "off" in words
    ):
        return False
    if request.for_another_user:
        return False
    opted_in = _is_set(job, "XMEM_ON") or "on" in words
    try:
        account = request.value("account")
        covered = coverage.has_job(
            tables, caller.command, account, request.partitions, opted_in=opted_in
        )
    except (TypeError, AttributeError):
        return True  # what is wrong with the file is said where it is checked
    return covered and refusal(job) is None


def _wishes(
    site_file: str, caller: Caller, tables: coverage.Tables, until: float, wanted: Mapping[str, Any]
) -> Wishes:
    """Return what the site wants of the filter, and what of the user's own wishes (`wanted`) it can
    heed.

    A dry run may take longer than the hook waits: the next submission has its answer. Its turn is
    waited for no longer. What srun and salloc run gets no share of a GPU: its limit is a variable,
    and salloc has no option that sets one.
    """
    return Wishes(
        **wanted,
        advise=tables.get("filter", {}).get("mode", "advise") == "advise",
        queue_seconds=max(0.0, until - _ANSWER_SECONDS - time.monotonic()),
        site=site_file,
        fresh=_is_set(caller.submission, "XMEM_FRESH"),
        whole=caller.command != "sbatch",
    )


def _is_set(job: Submission, variable: str) -> bool:
    return not settings.is_no(job.environ.get(variable, ""))


def _changes(before: Submission, after: Submission) -> Mapping[str, str]:
    """Return what differs, as options of sbatch; the hook can set variables of the job by --export
    only.

    Raises:
        UsageError: a variable cannot be given that way, or the script itself would have to be
            changed.
    """
    for step, changed in zip(job_steps.own_steps(before), job_steps.own_steps(after), strict=True):
        if step.value != changed.value:
            raise UsageError(
                f"line {step.line} of the script: {step.text} would have to be changed, too; "
                "xsbatch can do that"
            )
    old, new = before.request, after.request
    options = {
        name: new.value(name) or "" for name in _SETTABLE if old.value(name) != new.value(name)
    }
    variables = {
        name: value for name, value in after.environ.items() if before.environ.get(name) != value
    }
    variables = {name: value for name, value in variables.items() if not name.startswith("SBATCH_")}
    if variables:
        options["export"] = folding.export(old, variables)
    return options
