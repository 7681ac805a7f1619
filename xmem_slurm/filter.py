"""What should the site-wide filter change in the job that an sbatch is about to submit?

Slurm's cli_filter hook (`templates/hooks/cli_filter.lua.j2`) runs inside sbatch and calls `main`, as does `xmem-slurm
filter`, which takes longer to start. The hook is shown merged options, but neither the script nor its arguments;
sbatch's own command line, which Linux keeps for every process, has all of it. The answer is lines `option=value` for
the hook to set, and a last line `end`.

Not looked at: srun and salloc (nothing to run dry is at hand), a script on stdin (sbatch has read it by then),
heterogeneous jobs (the hook is called for each component, with no word of the others), `--test-only`, what sbatch will
refuse, and what xsbatch submits: it has looked already.
"""

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from xmem_slurm import folding, handover, jobsteps
from xmem_slurm.errors import UsageError, XmemError
from xmem_slurm.site import loading
from xmem_slurm.site.schema import Order, Site
from xmem_slurm.slurm import client
from xmem_slurm.slurm.edit import Job
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import GPU_OPTIONS, MEMORY_OPTIONS
from xmem_slurm.submit import Wishes, change

_SETTABLE = ("constraint", *GPU_OPTIONS, *MEMORY_OPTIONS)
_NO = ("", "0", "no")
"""What a variable of ours says where it is as good as not set, as xsbatch has it."""

_ANSWER_SECONDS = 2.0
"""Of the time that the hook waits, what is left for everything that is not a dry run."""


class Answer(NamedTuple):
    """Options to set, "" for one to take away, and the lines for the user's stderr."""

    changes: Mapping[str, str] = {}
    lines: Sequence[str] = ()


def main() -> None:
    """Answer for the site file and the process id on the command line; whatever goes wrong is one line on stderr."""
    site_file, process = sys.argv[1:]
    try:
        respond(Path(site_file), int(process))
    except XmemError as error:
        print(f"xmem-slurm: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(error.exit_code) from None
    except Exception as error:  # a user of plain sbatch did not ask for a traceback
        print(f"xmem-slurm: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from None


def respond(site_file: Path, process: int) -> None:
    """Print the answer for the sbatch of this process id on stdout, and what its user should know on stderr.

    Raises:
        SiteError: the site file cannot be read.
        UsageError: the process is no sbatch of this user's.
    """
    job = submission(process, os.environ)
    found = answer(site_file, loading.load_site(site_file), job) if job is not None else Answer()
    sys.stderr.writelines(f"xmem-slurm: {line}\n" for line in found.lines)
    sys.stdout.writelines([*(f"{name}={value}\n" for name, value in found.changes.items()), "end\n"])


def answer(site_file: Path, site: Site, job: Job) -> Answer:
    """Return what to change in the job, nothing where policy or the job's owner wants it left alone."""
    if site.filter.mode == "off" or refusal(job) is not None or not _is_covered(site, job):
        return Answer()
    advise = site.filter.mode == "advise"
    keep = _is_set(job, "XMEM_KEEP_TYPE")
    budget = max(1.0, site.filter.seconds - _ANSWER_SECONDS)
    try:
        wishes = Wishes(keep_type=keep, advise=advise, budget_seconds=budget, site=str(site_file), policy=_order(job))
        changed, lines = change(job, wishes)
        return Answer(_changes(job, changed), lines)
    except XmemError as error:
        return Answer(lines=[f"submitted as written: {error}"])


def submission(process: int, environ: Mapping[str, str]) -> Job | None:
    """Return the job that the sbatch of this process id is submitting; None where it is not to be looked at.

    Raises:
        UsageError: the process is no sbatch of this user's.
    """
    folder = Path("/proc", str(process))
    try:
        words = [os.fsdecode(word) for word in (folder / "cmdline").read_bytes().split(b"\0")[:-1]]
        owner = folder.stat().st_uid
    except OSError as error:
        raise UsageError(f"process {process}: {error.strerror}") from error
    if owner != os.getuid() or not words or words[0].rpartition("/")[2] != "sbatch":
        raise UsageError(f"process {process} is no sbatch of yours")
    if handover.is_marked(process):
        return None
    job = Job(tuple(words[1:]), environ, None)
    command_line = job.command_line()
    if command_line.wrap is not None:
        return job
    path = client.find_script(command_line, environ)
    return job._replace(script=path.read_bytes()) if path is not None and path.is_file() else None


def _is_covered(site: Site, job: Job) -> bool:
    command_line = job.command_line()
    script = job.parsed_script()
    request = job.request()
    words = {word for line in (script.own if script is not None else ()) for word in line.words}
    comment = (request.value("comment") or "").split()
    words |= {word.removeprefix("xmem:") for word in comment if word.startswith("xmem:")}
    if request.others or command_line.has("test-only") or _is_set(job, "XMEM_OFF") or "off" in words:
        return False
    if site.filter.opt_in and not _is_set(job, "XMEM_ON") and "on" not in words:
        return False
    user = pwd.getpwuid(os.getuid()).pw_name
    return site.filter.covers(user, request.value("account"), site.partitions_of(request.partitions))


def _order(job: Job) -> str | None:
    """Return the user's order of the options that fit; a variable with anything else is as good as not set."""
    order = job.environ.get("XMEM_POLICY")
    return order if order in get_args(Order) else None


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
