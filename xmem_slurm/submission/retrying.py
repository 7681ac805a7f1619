"""What is submitted beside a job for the case that it runs out of GPU memory (--xmem-retry)?

Each is a job of its own on a larger GPU, which Slurm starts if the one before it fails
(`--dependency=afternotok`) and forgets if that does not; a requeue would keep the first job's typed
GPU and pend for ever. It ends at once where the one before failed for another reason, as the
recorder's line of that one says.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from xmem_slurm.cluster import client
from xmem_slurm.decision import Decision
from xmem_slurm.errors import SlurmError
from xmem_slurm.outcomes import records
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import handover

SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_JOB_ID = re.compile(r"(?:Submitted batch job )?(\d+)")
_SECONDS = 60.0


def why_not(decision: Decision) -> str | None:
    """Return why no job is submitted beside this one, or None."""
    request = decision.written.request
    script = decision.ready.parsed_script
    if not decision.retries:
        return "there is no larger GPU to try, or its request may not be changed"
    if (
        script is None
        or decision.ready.command_line.script_index is None
        or script.interpreter not in SHELLS
    ):
        return "its script is not a shell script, which could see why the job before it failed"
    if request.value("array") is not None or decision.written.command_line.has("wait"):
        return "not with --array or --wait"
    if decision.written.command_line.has("quiet") and not decision.written.command_line.has(
        "parsable"
    ):
        return "with --quiet alone sbatch does not say which job it is for"
    return None


def submit(
    sbatch: Path,
    first: Submission,
    retries: Sequence[Submission],
    tell: Callable[[list[str]], None],
) -> int:
    """Submit a job, and those that are for the case that the one before them runs out; return
    sbatch's exit status.
    """
    marks = handover.mark(first.environ)
    submitted = subprocess.run(
        [sbatch, *first.argv],
        env=client.guarded(first.environ, sbatch),
        stdout=subprocess.PIPE,
        pass_fds=marks,
        check=False,
    )
    with suppress(OSError):  # nobody may read it any more, and the job is submitted all the same
        os.write(1, submitted.stdout)
    match = _JOB_ID.match(submitted.stdout.decode(errors="replace"))
    if submitted.returncode or match is None:
        return submitted.returncode
    before = [match[1]]
    try:
        for retry in retries:
            before.append(_submitted(sbatch, after(retry, before), marks))
            tell([f"job {before[-1]} is there in case job {before[-2]} runs out of GPU memory"])
    except Exception as error:  # what gets out of here has the job submitted once more
        tell([f"there is no retry of job {before[-1]}: {str(error) or type(error).__name__}"])
    return 0


def _submitted(sbatch: Path, job: Submission, marks: Sequence[int]) -> str:
    """Submit a job from standard input; return its number.

    Raises:
        SlurmError: sbatch refuses it.
    """
    submitted = subprocess.run(
        [sbatch, "--parsable", *job.argv],
        input=job.script,
        env=client.guarded(job.environ, sbatch),
        capture_output=True,
        pass_fds=marks,
        timeout=_SECONDS,
        check=False,
    )
    if submitted.returncode:
        raise SlurmError(submitted.stderr.decode(errors="replace").strip())
    return submitted.stdout.decode(errors="replace").strip().partition(";")[0]


def after(job: Submission, before: Sequence[str]) -> Submission:
    """Return a job to be submitted from standard input, for the case that all of these fail and the
    last runs out.
    """
    script, index = job.parsed_script, job.command_line.script_index
    assert script is not None
    assert index is not None
    name = []
    if not job.request.value("job-name"):
        name = [f"--job-name={job.argv[index].rpartition('/')[2]}"]
    ours = [
        f"--dependency=afternotok:{':'.join(before)}",
        "--kill-on-invalid-dep=yes",
        "--open-mode=append",
        *name,
    ]
    end = max(component.insert_at for component in script.components)
    guarded = script.data[:end] + _guard(before[-1]).encode() + script.data[end:]
    return job.but(
        argv=(*job.argv[:index], *ours, "/dev/stdin", *job.argv[index + 1 :]), script=guarded
    )


def _guard(before: str) -> str:
    """Return the lines that end a job where the one before it did not run out."""
    folder = shlex.quote(str(records.folder()))
    message = f"xmem-slurm: job {before} did not run out of GPU memory, and is not run again"
    return (
        f"# xmem-slurm: for the case that job {before} ran out of GPU memory\n"
        f"""grep -qs '"job":"{before}".*"state":"oom"' {folder}/*.jsonl"""
        f""" || {{ echo '{message}'; exit 0; }}\n"""
    )
