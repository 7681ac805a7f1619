"""What should the site-wide filter change in the job that an sbatch, srun or salloc is about to submit?

Slurm's cli_filter hook (`templates/hooks/cli_filter.lua.j2`) runs inside those and calls `main`, as does `xmem-slurm
filter`, which takes longer to start. The hook is shown merged options, but neither the script nor its arguments; the
command line, which Linux keeps for every process, has all of it. The answer is lines `option=value` for the hook to
set, and a last line `end`. Where the site wants it, a command that srun or salloc gets GPUs for is looked at as
sbatch's `--wrap` is.

Not looked at: a script on stdin (sbatch has read it by then), heterogeneous jobs (the hook is called for each
component, with no word of the others), `--test-only`, what sbatch will refuse, what xsbatch submits (it has looked
already), steps of a job that runs, and of srun and salloc what has no command to run dry: a shell, `--pty`.
"""

import os
import pwd
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from xmem_slurm import folding, handover, jobsteps
from xmem_slurm.errors import UsageError, XmemError
from xmem_slurm.slurm import body, client
from xmem_slurm.slurm.edit import Job
from xmem_slurm.slurm.options import NONE, REQUIRED, SBATCH, Option, scan, srun_table
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import GPU_OPTIONS, MEMORY_OPTIONS
from xmem_slurm.submit import Wishes, change

if TYPE_CHECKING:
    from xmem_slurm.site.schema import Site

COMMANDS = ("sbatch", "srun", "salloc")
"""Slurm's commands in which its cli_filter runs."""

_SETTABLE = ("constraint", *GPU_OPTIONS, *MEMORY_OPTIONS)
_NO = ("", "0", "no")
"""What a variable of ours says where it is as good as not set, as xsbatch has it."""

_ANSWER_SECONDS = 2.0
"""Of the time that the hook waits, what is left for everything that is not a dry run."""


_SALLOC = (
    *(Option(name, "", NONE) for name in ("bell", "no-bell", "no-shell")),
    Option("wait-all-nodes", "", REQUIRED),
)
"""What salloc has beside srun's options (salloc(1))."""
_NOTHING_TO_RUN = frozenset({"pty", "multi-prog", "jobid", "no-shell", "het-group", "pack-group", "help", "version"})
"""Options of srun and salloc with which no command is at hand, or no allocation is made."""
_SRUN_VARIABLES = {"NPROCS": "ntasks", "NTASKS": "ntasks", "NNODES": "nodes", "CPUS_PER_TASK": "cpus-per-task"}
"""SLURM_* variables that srun reads (srun(1)), and sbatch has no variable for."""


class Submission(NamedTuple):
    """What is submitted, and by which command of Slurm's; what srun and salloc run is in the job's `--wrap`."""

    job: Job
    command: str


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
    """Print the answer for the submission of this process id on stdout, and what its user should know on stderr.

    Raises:
        SiteError: the site file cannot be read.
        UsageError: the process submits nothing of this user's.
    """
    seen, found = submission(process, os.environ), Answer()
    if seen is not None and not _plainly_leaves_alone(site_file):
        from xmem_slurm.site import loading  # noqa: PLC0415 - pydantic takes longer than all else here

        found = answer(site_file, loading.load_site(site_file), seen)
    sys.stderr.writelines(f"xmem-slurm: {line}\n" for line in found.lines)
    sys.stdout.writelines([*(f"{name}={value}\n" for name, value in found.changes.items()), "end\n"])


def _plainly_leaves_alone(site_file: Path) -> bool:
    """Whether none of this user's jobs are looked at, by the file alone; what is wrong with it `load_site` says."""
    try:
        said = tomllib.loads(site_file.read_text(encoding="utf-8"))["filter"]
        user = pwd.getpwuid(os.getuid()).pw_name
        others = user not in (said.get("users") or [user])
        return said.get("mode") == "off" or user in said.get("not_users", ()) or others
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def answer(site_file: Path, site: "Site", seen: Submission) -> Answer:
    """Return what to change in the job, nothing where policy or the job's owner wants it left alone.

    What srun and salloc run gets no share of a GPU: its limit is a variable, and salloc has no option that sets one.
    """
    job, policy = seen.job, site.filter
    if policy.mode == "off" or seen.command not in policy.commands:
        return Answer()
    if refusal(job) is not None or not _is_covered(site, job):
        return Answer()
    advise = site.filter.mode == "advise"
    keep = _is_set(job, "XMEM_KEEP_TYPE")
    budget = max(1.0, site.filter.seconds - _ANSWER_SECONDS)
    try:
        wishes = Wishes(keep_type=keep, advise=advise, budget_seconds=budget, site=str(site_file), policy=_order(job))
        changed, lines = change(job, wishes._replace(whole=seen.command != "sbatch"))
        return Answer(_changes(job, changed), lines)
    except XmemError as error:
        return Answer(lines=[f"submitted as written: {error}"])


def submission(process: int, environ: Mapping[str, str]) -> Submission | None:
    """Return what the sbatch, srun or salloc of this process id is submitting; None where it is not to be looked at.

    Raises:
        UsageError: the process submits nothing of this user's.
    """
    folder = Path("/proc", str(process))
    try:
        words = [os.fsdecode(word) for word in (folder / "cmdline").read_bytes().split(b"\0")[:-1]]
        owner = folder.stat().st_uid
    except OSError as error:
        raise UsageError(f"process {process}: {error.strerror}") from error
    command = words[0].rpartition("/")[2] if words else ""
    if owner != os.getuid() or command not in COMMANDS:
        raise UsageError(f"process {process} is no sbatch, srun or salloc of yours")
    if handover.is_marked(process):
        return None
    job = _batch(words[1:], environ) if command == "sbatch" else as_batch(command, words[1:], environ)
    return Submission(job, command) if job is not None else None


def _batch(words: Sequence[str], environ: Mapping[str, str]) -> Job | None:
    job = Job(tuple(words), environ, None)
    command_line = job.command_line()
    if command_line.wrap is not None:
        return job
    path = client.find_script(command_line, environ)
    return job._replace(script=path.read_bytes()) if path is not None and path.is_file() else None


def as_batch(command: str, words: Sequence[str], environ: Mapping[str, str]) -> Job | None:
    """Return the sbatch that would ask for the same as this srun or salloc, and run the same; None where there is none.

    Their SLURM_* and SALLOC_* variables become those of sbatch (srun(1), salloc(1): INPUT ENVIRONMENT VARIABLES).
    """
    found, at = scan(words, srun_table().with_options(_SALLOC))
    run = words[at:]
    unknown = any(each.option is None and each.value is None for each in found)
    inside = command == "srun" and "SLURM_JOB_ID" in environ  # a step
    if not run or ":" in words or unknown or inside or _NOTHING_TO_RUN & {each.name for each in found}:
        return None
    if run[0].rpartition("/")[2] in body.SHELLS and all(word.startswith("-") for word in run[1:]):
        return None
    prefix = "SLURM_" if command == "srun" else "SALLOC_"
    known = {variable for option in SBATCH.options for variable in option.variables}
    theirs = {f"SBATCH_{n.removeprefix(prefix)}": value for n, value in environ.items() if n.startswith(prefix)}
    kept = {name: value for name, value in environ.items() if name not in known}
    of_variables = [
        f"--{name}={environ[prefix + variable]}"
        for variable, name in _SRUN_VARIABLES.items()
        if command == "srun" and prefix + variable in environ
    ]
    given = [
        f"--{each.name}" if each.value is None else f"--{each.name}={each.value}"
        for each in found
        if each.name in SBATCH.by_name and each.name != "wait"  # srun's is another one
    ]
    text = shlex.join(["srun", *run] if command == "srun" else run)
    environ = kept | {name: value for name, value in theirs.items() if name in known}
    return Job((*of_variables, *given, f"--wrap={text}"), environ, None)


def _is_covered(site: "Site", job: Job) -> bool:
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
    from xmem_slurm.site.schema import Order  # noqa: PLC0415

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
