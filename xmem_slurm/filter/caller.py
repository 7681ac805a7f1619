"""What is the sbatch, srun or salloc submitting that called Slurm's cli_filter hook?

The hook is shown merged options, but neither the script nor its arguments; the command line, which
Linux keeps for every process, has all of it. A command that srun or salloc gets GPUs for becomes an
sbatch with that in `--wrap`.

None where there is nothing that could be run dry: a script on stdin (sbatch has read it by then), a
shell, `--pty`; a step of a job that runs; what xsbatch submits, which it has looked at already; and
a program of another name.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.cluster import client
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm import body
from xmem_slurm.slurm.options import NONE, REQUIRED, SBATCH, Option, scan, srun_table
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import handover

COMMANDS = ("sbatch", "srun", "salloc")
"""Slurm's commands in which its cli_filter runs."""

_SALLOC = (
    *(Option(name, "", NONE) for name in ("bell", "no-bell", "no-shell")),
    Option("wait-all-nodes", "", REQUIRED),
)
"""What salloc has beside srun's options (salloc(1))."""
_NOTHING_TO_RUN = frozenset(
    {"pty", "multi-prog", "jobid", "no-shell", "het-group", "pack-group", "help", "version"}
)
"""Options of srun and salloc with which no command is at hand, or no allocation is made."""
_SRUN_VARIABLES = {
    "NPROCS": "ntasks",
    "NTASKS": "ntasks",
    "NNODES": "nodes",
    "CPUS_PER_TASK": "cpus-per-task",
}
"""SLURM_* variables that srun reads (srun(1)), and sbatch has no variable for."""


class Caller(NamedTuple):
    """What is submitted, and by which command of Slurm's; what srun and salloc run is in its
    `--wrap`.
    """

    submission: Submission
    command: str


def caller_of(process: int, environ: Mapping[str, str]) -> Caller | None:
    """Return what the sbatch, srun or salloc of this process id is submitting; None where it is not
    to be looked at.

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
    if owner != os.getuid():
        raise UsageError(f"process {process} is not yours")
    if command not in COMMANDS:  # a site may have given Slurm's own another name
        return None
    if handover.is_marked(process):
        return None
    job = (
        _batch(words[1:], environ) if command == "sbatch" else as_batch(command, words[1:], environ)
    )
    return Caller(job, command) if job is not None else None


def has_ended(process: int) -> bool:
    """Whether the submitting process has ended, reaped or not: its job is not submitted any more.

    One that ends has no command line from then on (fs/proc/base.c, `proc_pid_cmdline_read`).
    """
    try:
        return not Path("/proc", str(process), "cmdline").read_bytes()
    except OSError:
        return True


def _batch(words: Sequence[str], environ: Mapping[str, str]) -> Submission | None:
    job = Submission(tuple(words), environ, None)
    if job.command_line.wrap is not None:
        return job
    path = client.find_script(job)
    if path is None or not path.is_file() or path.stat().st_size > client.MOST_SCRIPT_BYTES:
        return None
    return job.but(script=path.read_bytes())


def as_batch(command: str, words: Sequence[str], environ: Mapping[str, str]) -> Submission | None:
    """Return the sbatch that would ask for the same as this srun or salloc, and run the same; None
    where there is none.

    Their SLURM_* and SALLOC_* variables become those of sbatch (srun(1), salloc(1): INPUT
    ENVIRONMENT VARIABLES).
    """
    options, at = scan(words, srun_table().with_options(_SALLOC))
    run = words[at:]
    unknown = any(occurrence.option is None and occurrence.value is None for occurrence in options)
    inside = command == "srun" and "SLURM_JOB_ID" in environ  # a step
    if (
        not run
        or ":" in words
        or unknown
        or inside
        or _NOTHING_TO_RUN & {occurrence.name for occurrence in options}
    ):
        return None
    if run[0].rpartition("/")[2] in body.SHELLS and all(word.startswith("-") for word in run[1:]):
        return None
    prefix = "SLURM_" if command == "srun" else "SALLOC_"
    sbatch_variables = {variable for option in SBATCH.options for variable in option.variables}
    theirs = {
        f"SBATCH_{n.removeprefix(prefix)}": value
        for n, value in environ.items()
        if n.startswith(prefix)
    }
    kept = {name: value for name, value in environ.items() if name not in sbatch_variables}
    of_variables = [
        f"--{name}={environ[prefix + variable]}"
        for variable, name in _SRUN_VARIABLES.items()
        if command == "srun" and prefix + variable in environ
    ]
    carried = [
        f"--{occurrence.name}{'' if occurrence.value is None else f'={occurrence.value}'}"
        for occurrence in options
        if occurrence.name in SBATCH.by_name and occurrence.name != "wait"  # srun's is another one
    ]
    text = shlex.join(["srun", *run] if command == "srun" else run)
    environ = kept | {name: value for name, value in theirs.items() if name in sbatch_variables}
    return Submission((*of_variables, *carried, f"--wrap={text}"), environ, None)
