"""What should the site-wide filter change in the job that an sbatch, srun or salloc is about to submit?

Slurm's cli_filter hook (`templates/hooks/cli_filter.lua.j2`) runs inside those and calls `start`, which calls
`main`. The answer is lines `option=value` for the hook to set, and a last line `end`; or `refuse`,
where the site wants no such job.

Not looked at: what `caller` has no job for, heterogeneous jobs (the hook is called for each component, with no word of
the others), `--test-only`, jobs of other users (`--uid`), and what sbatch will refuse. An answer that is kept (`cache`)
rests on the site file, too: where it holds, that file need not be checked again.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, get_args

from xmem_slurm import folding, handover, jobsteps
from xmem_slurm.answer import Wishes, own_words
from xmem_slurm.answer import answer as answer_to
from xmem_slurm.errors import Refused, UsageError, XmemError
from xmem_slurm.filter.caller import Submission, submission
from xmem_slurm.site import coverage
from xmem_slurm.slurm import client
from xmem_slurm.slurm.edit import Job
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import GPU_OPTIONS, MEMORY_OPTIONS

_SETTABLE = ("constraint", *GPU_OPTIONS, *MEMORY_OPTIONS)
_NO = ("", "0", "no")
"""What a variable of ours says where it is as good as not set, as xsbatch has it."""

_ANSWER_SECONDS = 2.0
"""Of the time that the hook waits, what is left for everything that is not a dry run."""


class Answer(NamedTuple):
    """Options to set, "" for one to take away, lines for the user's stderr, and the last word: "end" or "refuse"."""

    changes: Mapping[str, str] = {}
    lines: Sequence[str] = ()
    last: str = "end"


def main(site_file: str, process: int, tables: coverage.Tables) -> None:
    """Print the answer for the submission of this process id; whatever goes wrong is one line for its user.

    `tables` are the site file's, empty where they could not be read.
    """
    found = Answer()
    with handover.clearing_up():  # the hook's time may be up
        try:
            seen = submission(process, os.environ)
            if seen is not None and _is_covered(seen, tables):
                _end_with(process)
                found = answer(site_file, seen)
        except Refused as error:
            found = Answer(lines=[f"not submitted: {error}"], last="refuse")
        except XmemError as error:
            found = Answer(lines=[f"submitted as written: {error}"])
        except Exception as error:  # a user of plain sbatch did not ask for a traceback
            found = Answer(lines=[f"submitted as written: {type(error).__name__}: {error}"])
    sys.stderr.writelines(f"xmem-slurm: {line}\n" for line in found.lines)
    sys.stdout.writelines([*(f"{name}={value}\n" for name, value in found.changes.items()), f"{found.last}\n"])


def _end_with(process: int) -> None:
    """Ask ourselves to end when this process has ended, which waits for the answer: its Ctrl-C does not reach us."""
    with suppress(OSError):
        ended = os.pidfd_open(process)

        def watch() -> None:
            select.select([ended], [], [])
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()


def answer(site_file: str, seen: Submission) -> Answer:
    """Return what to change in the job: what is known of it already, else what sizing it says.

    Raises:
        XmemError: the job goes as it was written; the message says why.
    """
    from xmem_slurm import cache  # noqa: PLC0415 - not for jobs that are left alone

    name = cache.key(seen.job, ["filter", site_file, seen.command])
    kept = None if _is_set(seen.job, "XMEM_FRESH") else cache.look_up(name, seen.job)
    changed, lines = kept or answer_to(seen.job, _wishes(site_file, seen), name)
    changes = _changes(seen.job, changed)
    if changes:
        client.check_accepted(client.find_sbatch(seen.job.environ), changed.on_stdin())
    return Answer(changes, lines)


def _is_covered(seen: Submission, tables: coverage.Tables) -> bool:
    """Whether the site wants the job to be looked at, and its owner does not want it left alone."""
    job, request = seen.job, seen.job.request()
    comment = (request.value("comment") or "").split()
    words = {*own_words(job), *(word.removeprefix("xmem:") for word in comment if word.startswith("xmem:"))}
    if request.others or job.command_line().has("test-only") or _is_set(job, "XMEM_OFF") or "off" in words:
        return False
    if request.for_another_user:
        return False
    opted_in = _is_set(job, "XMEM_ON") or "on" in words
    try:
        account = request.value("account")
        covered = coverage.has_job(tables, seen.command, account, request.partitions, opted_in=opted_in)
    except (TypeError, AttributeError):
        return True  # what is wrong with the file is said where it is checked
    return covered and refusal(job) is None


def _wishes(site_file: str, seen: Submission) -> Wishes:
    """Return what the site wants of the filter, and the user by variables; one that makes no sense is as good as none.

    What srun and salloc run gets no share of a GPU: its limit is a variable, and salloc has no option that sets one.

    Raises:
        SiteError: the site file cannot be read, or is wrong.
    """
    from xmem_slurm.site import loading, schema  # noqa: PLC0415 - pydantic takes longer than all else here

    policy = loading.load_site(Path(site_file)).filter
    order = seen.job.environ.get("XMEM_POLICY")
    return Wishes(
        keep_type=_is_set(seen.job, "XMEM_KEEP_TYPE"),
        advise=policy.mode == "advise",
        wait_seconds=max(1.0, policy.seconds - _ANSWER_SECONDS),
        site=site_file,
        fresh=_is_set(seen.job, "XMEM_FRESH"),
        policy=order if order in get_args(schema.Order) else None,
        whole=seen.command != "sbatch",
    )


def _is_set(job: Job, variable: str) -> bool:
    return job.environ.get(variable, "") not in _NO


def _changes(before: Job, after: Job) -> Mapping[str, str]:
    """Return what differs, as options of sbatch; the hook can set variables of the job by --export only.

    Raises:
        UsageError: a variable cannot be given that way, or the script itself would have to be changed.
    """
    for step, changed in zip(jobsteps.own_steps(before), jobsteps.own_steps(after), strict=True):
        if step.value != changed.value:
            raise UsageError(
                f"line {step.line} of the script: {step.text} would have to be changed, too; xsbatch can do that"
            )
    old, new = before.request(), after.request()
    found = {name: new.value(name) or "" for name in _SETTABLE if old.value(name) != new.value(name)}
    variables = {name: value for name, value in after.environ.items() if before.environ.get(name) != value}
    variables = {name: value for name, value in variables.items() if not name.startswith("SBATCH_")}
    if variables:
        found["export"] = folding.export(old, variables)
    return found
