"""Submit a job: size it if it asks for a GPU, change its request if that is allowed, and become the real sbatch.

Whatever goes wrong on the way, the job is submitted as it was written, with one line on stderr that says why. stdout,
exit code and signals are sbatch's own, because the last act is exec. Imports here are few: a job without a GPU must not
wait for pydantic or jinja2.
"""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from xmem_slurm.errors import NoEstimate, XmemError
from xmem_slurm.slurm import client
from xmem_slurm.slurm.edit import Job
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.script import Script


class Wishes(NamedTuple):
    """What the user wants of xsbatch itself: its options, XMEM_* variables and the script's #XMEM lines."""

    off: bool = False
    dry_run: bool = False
    keep_type: bool = False
    budget_seconds: float = 60.0
    site: str | None = None
    report: str | None = None


class _Ready(NamedTuple):
    """What sbatch will be given, and what is told on stderr first."""

    job: Job
    lines: Sequence[str] = ()


def submit(argv: Sequence[str], environ: Mapping[str, str], wishes: Wishes) -> NoReturn:
    """Submit as `sbatch *argv` would, with the GPU request made right; does not return.

    Raises:
        SlurmError: there is no sbatch to hand the job to.
    """
    sbatch = client.find_sbatch(environ)
    written = Job(tuple(argv), environ, None)
    if "XMEM_ACTIVE" in environ or (wishes.off and not wishes.dry_run):
        _become_sbatch(sbatch, written)
    try:
        written = _read(written, sbatch)
        ready = _prepare(written, wishes)
        if not wishes.dry_run:
            ready = ready._replace(job=_with_script_kept(ready.job, written))
    except XmemError as error:
        ready = _Ready(written, [f"submitted as written: {error}"])
    except Exception as error:  # a fault of ours must not cost the user a job
        ready = _Ready(written, [f"submitted as written: {type(error).__name__}: {error}"])
    for line in ready.lines:
        print(f"xsbatch: {line}", file=sys.stderr)  # noqa: T201
    if wishes.dry_run:
        _show(ready.job)
    _become_sbatch(sbatch, ready.job)


def _read(job: Job, sbatch: Path) -> Job:
    """Return the job with its script's bytes; None of them for --wrap, and for a file that sbatch cannot read either.

    Where an option is not sbatch's own, the site's plugins are asked for theirs: its value may look like the script.
    """
    if job.command_line().unknown:
        job = job._replace(plugins=client.plugin_options(sbatch))
    command_line = job.command_line()
    if command_line.reads_stdin:
        return job._replace(script=sys.stdin.buffer.read())
    path = client.find_script(command_line) if command_line.wrap is None else None
    if path is None:
        return job
    job = job._replace(script=path.read_bytes())
    script = job.parsed_script() if refusal(job) is None else None
    if script is not None and script.unknown and not job.plugins:
        job = job._replace(plugins=client.plugin_options(sbatch))
    return job


def _prepare(job: Job, wishes: Wishes) -> _Ready:
    """Size the job and change its request; as it is where it asks for no GPU, or where sbatch will refuse it anyway."""
    if (job.script is None and job.command_line().wrap is None) or refusal(job) is not None:
        return _Ready(job)
    request = job.request()
    if not request.asks_for_gpu:
        return _Ready(job)
    wishes = _with_own_lines(wishes, job.parsed_script())
    if wishes.off:
        return _Ready(job)
    _check_supported(request)
    return _size(job, request, wishes)


def _with_own_lines(wishes: Wishes, script: Script | None) -> Wishes:
    words = {word for line in (script.own if script is not None else ()) for word in line.words}
    return wishes._replace(off=wishes.off or "off" in words, keep_type=wishes.keep_type or "keep-type" in words)


def _check_supported(request: Request) -> None:
    if len(request.components) > 1:
        raise NoEstimate("a heterogeneous job cannot be estimated yet")
    if any(each.resource != "gpu" for each in request.accelerators):
        raise NoEstimate("a request for shares of a GPU (shard, mps) is not changed yet")
    if request.gpus_total != 1 or request.ntasks > 1 or (request.nodes or 1) > 1:
        raise NoEstimate("only a job of one process on one GPU can be estimated yet")


def _size(job: Job, request: Request, wishes: Wishes) -> _Ready:
    """Run dry, estimate, place, rewrite. Everything heavy is imported here, where a GPU job waits seconds anyway."""
    from xmem_slurm import rewrite, sizing  # noqa: PLC0415
    from xmem_slurm.dryrun import runner  # noqa: PLC0415
    from xmem_slurm.report import json, terminal  # noqa: PLC0415
    from xmem_slurm.site import loading  # noqa: PLC0415

    site = loading.load_site(loading.site_file(wishes.site, job.environ))
    gpus = loading.option_gpus(site, loading.load_catalogue())
    with terminal.progress("running the job dry to see how much GPU memory it needs"):
        sized = sizing.size(job, site, gpus, runner.Budget(seconds=wishes.budget_seconds))
    if wishes.report is not None:
        json.write(Path(wishes.report), sized)
    lines = terminal.estimate_lines(sized.estimate)
    choice = sized.placement.choice
    if choice is None:
        return _Ready(job, [*lines, terminal.nothing_fits(sized)])
    if not site.policy.rewrite or (request.gpu_types and (wishes.keep_type or site.policy.keep_type)):
        return _Ready(job, [*lines, terminal.advice(sized)])
    ready, changes = rewrite.rewrite(job, site.option[choice], terminal.reason(sized))
    return _Ready(ready, [*lines, terminal.outcome(changes, sized)])


def _show(job: Job) -> NoReturn:
    """Print the script that would be submitted, and on stderr what else would be given to sbatch; submit nothing."""
    sys.stdout.buffer.write(job.script or b"")
    print(f"xsbatch: would run: sbatch {shlex.join(job.argv)}", file=sys.stderr)  # noqa: T201
    raise SystemExit(0)


def _with_script_kept(job: Job, written: Job) -> Job:
    """Let a script file that was changed go by a copy of its own name: the user's file is never touched.

    The copy stays in the user's state directory, where `Command` of the job's record points; Slurm takes the job's name
    from it.
    """
    index = job.command_line().script_index
    if index is None or job.script is None or job.script == written.script:
        return job
    import platformdirs  # noqa: PLC0415

    jobs = platformdirs.user_state_path("xmem-slurm") / "jobs"
    jobs.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=jobs))
    path = folder / Path(job.argv[index]).name
    path.write_bytes(job.script)
    path.chmod(0o700)
    return job._replace(argv=(*job.argv[:index], str(path), *job.argv[index + 1 :]))


def _become_sbatch(sbatch: Path, job: Job) -> NoReturn:
    """Replace this process by sbatch; a script that was read from stdin goes there again."""
    if job.script is not None and job.command_line().reads_stdin:
        _stdin_from(job.script)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sbatch, ["sbatch", *job.argv], dict(job.environ))


def _stdin_from(script: bytes) -> None:
    """Make `script` what sbatch reads from its standard input."""
    memory = os.memfd_create("xsbatch-stdin")
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(script)
    os.lseek(memory, 0, os.SEEK_SET)
    os.dup2(memory, 0)
