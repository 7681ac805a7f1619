"""Run a batch script as its job would be run, with stand-in GPUs, and collect the traces of its GPU
processes.
"""

import errno
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from xmem_slurm import checked, trace, trace_file, untrusted
from xmem_slurm.device import ask, builder
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import build_server, gpu_environment, live_progress, set_up
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.containers import detection, oci_bundle, pyxis, said, shim
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.dryrun.replaced_programs import covers
from xmem_slurm.dryrun.shims import commands, fetchers, launchers, slurm_queries
from xmem_slurm.errors import NoEstimate, SandboxError, UnusedGpu
from xmem_slurm.profile import recording
from xmem_slurm.profile.orchestrator import orchestrate
from xmem_slurm.sandbox import sandbox
from xmem_slurm.state import own_files, throwaway
from xmem_slurm.units import MIB

LAST_WORDS_SECONDS = 2.0
"""Between the probe's last write and the end of the budget, so that it is whole."""
BUSY_SHARE = 0.8
"""A dry run that the clock stopped and that spent less of that time waited for others: what waits
by itself spends."""
_NO_ROOM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
"""What a compiler says, too, that finds none for the stand-ins."""
HIDDEN = Path("/run")
"""The sandbox shows an empty one, so our own folder may not be there."""
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - mkdtemp makes a folder of our own
_METER = "spent"
"""Where the probe finds what was spent so far (probe/_xmem/process/budget.py)."""
_LIMITS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
"""The variables that hold a job to a share of a GPU (`sharing`): the probe sees whether the job
leaves them alone."""
_RUN = "xmem-dry-run-"
"""What the names of the folders of dry runs begin with."""
_FILES = "files.log"
"""What the probe calls its notes of files (probe/_xmem/process/files.py)."""
_LACKING = "lacking"
"""What the probe calls the file with the Python that lacked a module (probe/_xmem/imports.py)."""
_SHIM = (
    f"import sys; sys.path.append('{Path(__file__).parents[2]}');"
    " from xmem_slurm.dryrun.shims.commands import main; main()"
)
_START = f"""#!/bin/sh
python='{sys.executable}'
if [ -n "${{XMEM_MOUNTS-}}" ]; then
    python=python3
    if ! command -v python3 > /dev/null; then
        echo "${{0##*/}}: the image has no python3, by which it is answered in a dry run" >&2
        exit 127
    fi
fi
exec "$python" -I -S -B -c "{_SHIM}" """
"""It runs by our Python; in a container, which has that variable, by the image's."""
_EXITS = ("SystemExit", "os._exit")
"""What a script ends by that has said why in its own words."""
_MOST_NOTED = 1000
"""Characters of a note."""
_UNUSED = "torch was imported but no GPU memory was used"
_NOT_LOADED = "did not load torch"
_HIDDEN = "if it did, python -I, python -E or env -i hid that"
_ACTIVATED = "is the job's environment activated, here or in the script?"
_NO_TORCH = "No module named 'torch'"
_UNREACHED = (
    "torch found no CUDA library, as the script's Python was not reached: it replaces "
    "PYTHONPATH and LD_PRELOAD"
)
_CUDA_LIBRARY_MISSING = re.compile(
    rb"(?:Import|OS|Value)Error: lib(?:cu|nccl|nv)\S*\.so\S*"
    rb"(: cannot open shared| not found in the system)"
)
"""What torch says on a machine without CUDA where the stand-ins were not mapped."""


def run(order: DryRunOrder) -> DryRunResult:
    """Run a job as it is ordered, in the sandbox of this machine.

    Where no trace comes of it the result says why, with the script's own last words where there are
    any.

    Raises:
        SandboxError: this machine cannot throw away what the script writes, or has no room for what
        we do.
        DeviceBuildError: others could write where the stand-ins are kept.
    """
    try:
        return _run(order)
    except OSError as error:
        where = error.filename or _temporary_folder()
        words = (
            f"no dry run, as its own files cannot be written: {where}: {error.strerror or error}"
        )
        raise SandboxError(words) from error


def _run(order: DryRunOrder) -> DryRunResult:
    """Do so, with no word for a full disk."""
    job, stand_ins = order.job, builder.cache_folder()
    builder.make_own(stand_ins, builder.making(stand_ins))
    builder.making(stand_ins).mkdir(exist_ok=True, mode=0o700)
    with throwaway.made(_temporary_folder(), _RUN) as folder:
        traces = folder / "traces"
        traces.mkdir()
        shim.lay_out(folder)
        script = _write_program(folder / "slurm_script", job.script)
        environ = _environment(order, folder, traces) | pyxis.variables(job.container)
        with build_server.serving(folder) as building, live_progress.told(folder) as heard_by:
            run = functools.partial(
                sandbox.run,
                _command(job, script, folder / "bin", environ),
                cwd=job.folder,
                environ=environ | heard_by,
                limits=order.budget.limits(),
                show=[folder, stand_ins],
                hide=_not_for_jobs(stand_ins),
                results=traces,
                cover=covers(
                    os.pathsep.join([environ["PATH"], *detection.folders(job)]), folder / "bin"
                ),
                meter=traces / _METER,
                containers=detection.runs_containers(job),
                fuse=detection.has_image_files(job),
                held_up=lambda: building.goes_on,
            )
            began = time.monotonic()
            outcome = run()
            # On a busy machine all of its time by the clock may go while its stand-ins are made.
            if outcome.stopped == "time" and building.goes_on:
                if not building.waited_for(began):
                    no_fact = NoEstimate(_NOT_BUILT, busy=True)
                    return DryRunResult(no_fact, Spent(outcome.spent_seconds), outcome)
                shutil.rmtree(traces)
                traces.mkdir()
                outcome = run()
        spent = Spent(outcome.spent_seconds)
        try:
            return DryRunResult(_traces(traces, outcome), spent, outcome, outcome.stopped)
        except NoEstimate as error:
            return DryRunResult(error, spent, outcome, outcome.stopped)


def _command(job: Job, script: Path, shims: Path, environ: Mapping[str, str]) -> list[str]:
    """Return what is started: the script, in its container where the job is one."""
    command = [str(script), *job.arguments]
    if not job.container:
        return command
    if "container" in job.container:
        command = oci_bundle.started(job.folder / job.container["container"], job.folder, command)
    else:
        command = pyxis.started(job.container, command, environ)
    return [str(shims / command[0]), *command[1:]]


def _traces(traces: Path, outcome: sandbox.Outcome) -> list[trace.Trace]:
    """Read what a dry run left.

    Raises:
        NoEstimate: there is nothing to estimate from.
    """
    if outcome.kept_back:
        raise NoEstimate(f"the dry run left {outcome.kept_back}")
    files = trace_file.read_files(traces / _FILES)
    missing = fetchers.missing(traces, outcome.output_tail)
    traces_read = [
        replace(_with_end(trace_read, outcome, missing), files=files) for trace_read in read(traces)
    ]
    if os.path.lexists(traces / slurm_queries.MARK):
        itself = trace.Noted(Doubt.OWN_SCRIPT, "scontrol was asked for it")
        traces_read = [
            replace(trace_read, doubts=[*trace_read.doubts, itself]) for trace_read in traces_read
        ]
    if launcher := _noted(traces / launchers.NOT_HERE):
        without = trace.Noted(Doubt.NO_LAUNCHER, launcher)
        traces_read = [
            replace(trace_read, doubts=[*trace_read.doubts, without]) for trace_read in traces_read
        ]
    failed_lines = set_up.failures(outcome.output_head)
    if failed_lines:
        words = ", and ".join(failed_lines)
        traces_read = [_after_failed_line(trace_read, words) for trace_read in traces_read]
    if not any(trace_read.allocations or trace_read.error for trace_read in traces_read):
        not_there = _not_there(failed_lines) if outcome.stopped is None else ""
        why = not_there or _why_nothing(traces, traces_read, outcome)
        on_any_gpu = outcome.stopped is None and not any(
            trace_read.recorded for trace_read in traces_read
        )
        unused = why == _UNUSED
        kind = UnusedGpu if unused else NoEstimate
        python = next(
            (trace_read.python for trace_read in traces_read if trace_read.python), _lacking(traces)
        )
        went_on = _went_on(python) if python not in why else ""
        others = [line for line in failed_lines if line not in why]
        before = f"; before that failed {', and '.join(others)}{went_on}" if others else ""
        no_fact = _is_no_fact(outcome, why)
        excused = missing or any(line not in why for line in failed_lines) or no_fact
        raise kind(
            why if unused else f"{why}{missing}{before}",
            files,
            on_any_gpu=on_any_gpu,
            fails=on_any_gpu and trace.cannot_run(why) and not excused,
            busy=no_fact,
        )
    failed = outcome.returncode and outcome.stopped is None
    if failed and not any(trace_read.error or trace_read.steps for trace_read in traces_read):
        code = outcome.returncode
        why = (
            f"the script ended with code {code} before any "
            f"step{_disturbed(outcome)}{_last_words(outcome)}{missing}"
        )
        raise NoEstimate(why, files, busy=_is_no_fact(outcome, why))
    return traces_read


def _after_failed_line(trace_read: trace.Trace, failed_line: str) -> trace.Trace:
    """Say in a trace which line failed before, and which Python ran then: perhaps another."""
    noted = trace.Noted(Doubt.SET_UP, f"{failed_line}{_went_on(trace_read.python)}")
    return replace(trace_read, doubts=[*trace_read.doubts, noted])


def _not_there(failed_lines: Sequence[str]) -> str:
    """Say of the first command that no node will find why: its name is misspelt, or it comes with
    an environment that is not activated; "" where all may be there.
    """
    for line in failed_lines:
        command = set_up.not_found(line)
        if program := set_up.meant(command):
            return f"{trace.MISSPELT} in its script: {line} (is `{program}` meant?)"
        if command in set_up.LAUNCHERS:
            return f"{trace.NOT_ON_PATH}: {line} ({_ACTIVATED})"
    return ""


def _went_on(python: str) -> str:
    return f"; the script went on with {python}" if python else ""


def _lacking(traces: Path) -> str:
    """Return the path of the Python that lacked a module and had no torch yet; "" of none."""
    return _noted(traces / _LACKING)


def _noted(file: Path) -> str:
    """Return what a dry run left in a file of one word; "" of none."""
    try:
        return checked.plain(os.fsdecode(untrusted.read(file, _MOST_NOTED)))
    except untrusted.DAMAGE:
        return ""


def _not_for_jobs(stand_ins: Path) -> list[Path]:
    """Return what of our own a job has no part in: kept answers, scripts of other jobs, locks of
    builds.
    """
    hidden = [entry for entry in stand_ins.parent.iterdir() if entry != stand_ins]
    return [*hidden, builder.making(stand_ins), own_files.record_folder("")]


def _temporary_folder() -> Path:
    """Return where our folder can be: in the user's place for such, unless the sandbox hides
    that.
    """
    usual = Path(tempfile.gettempdir()).resolve()
    if HIDDEN not in (usual, *usual.parents):
        return usual
    return next((place for place in _TEMPORARY if os.access(place, os.W_OK | os.X_OK)), usual)


def _with_end(unended: trace.Trace, outcome: sandbox.Outcome, missing: str) -> trace.Trace:
    """Say how a process ended that could not say so itself, and what it could not have, if that may
    be why.
    """
    failure = unended.failure
    if unended.state == "running" and failure is None:
        if outcome.stopped == "time":  # what it wrote last is the trace so far
            return replace(unended, state="budget")
        ended_well = outcome.returncode == 0 and outcome.stopped is None
        if ended_well and outcome.disturbed is None and unended.steps >= trace.LEAST_STEPS:
            # Ray's actors: who asked them has its results, and needs them no more. One that made no
            # steps has rather crashed, in a script that goes on (no `set -e`).
            killed = trace.Noted(Doubt.KILLED, "")
            return replace(unended, state="exit", doubts=[*unended.doubts, killed])
        failure = trace.ScriptFailure(f"{trace.CRASH}{_last_words(outcome)}", trace.CRASH)
        if outcome.stopped is not None:
            failure = trace.ScriptFailure(f"the dry run's {outcome.stopped} limit")
    elif failure is not None:
        detail = f" ({_read_only(outcome)})" if outcome.read_only else ""
        if failure.type in _EXITS and outcome.stopped is None:
            detail = _last_words(outcome)
        failure = replace(failure, words=failure.words + detail)
    if failure is not None and missing:
        failure = replace(failure, words=failure.words + missing, offline=True)
    return replace(unended, failure=failure)


def _is_no_fact(outcome: sandbox.Outcome, why: str = "") -> bool:
    """Whether this machine ended it, had no room for it or, as others were busy, no time; or a file
    of ours is broken.

    Another time it may be otherwise.
    """
    had_no_time = outcome.stopped == "time" and outcome.spent_seconds < BUSY_SHARE * outcome.seconds
    by_chance = (
        had_no_time or outcome.disturbed is not None or any(words in why for words in _NO_ROOM)
    )
    return by_chance or trace.is_of_ours(why)


def _disturbed(outcome: sandbox.Outcome) -> str:
    return f", as {outcome.disturbed}" if outcome.disturbed else ""


def _read_only(outcome: sandbox.Outcome) -> str:
    return checked.plain(
        f"nothing could be written to {', '.join(outcome.read_only)} in the dry run"
    )


def read(folder: Path) -> list[trace.Trace]:
    """Read what the probe left: traces of the stand-in device, and profiles of steps on the CPU.

    Raises:
        NoEstimate: one of them is none, or all together are too large.
    """
    allowance = untrusted.Allowance()
    traces = [_trace_of(file, allowance) for file in sorted(folder.glob("*.json.gz"))]
    for file in sorted(folder.glob(f"*{recording.SUFFIX}")):
        profile = recording.read(file, allowance)
        try:
            traces.append(orchestrate(profile))
        except untrusted.DAMAGE as error:  # a form that no profiler gives it
            raise NoEstimate(
                f"{file}: not a profile of this program's ({type(error).__name__})"
            ) from error
    return traces


def _trace_of(file: Path, allowance: untrusted.Allowance) -> trace.Trace:
    """Read a trace. One whose process was killed says of its end only when it was last written; the
    file's own time is nearer.
    """
    read_trace = trace_file.read(file, allowance)
    first, last = read_trace.lived
    if read_trace.state != "running" or not last:  # what was not noted was not
        return read_trace
    return replace(read_trace, lived=(first, max(last, file.stat().st_mtime)))


def _environment(order: DryRunOrder, folder: Path, traces: Path) -> dict[str, str]:
    """What the job would see, then what makes it a dry run."""
    job, budget = order.job, order.budget
    names = [
        name
        for name in commands.SHIMS
        if name not in fetchers.FETCHERS or shutil.which(name, path=job.environ.get("PATH"))
    ]
    shim_folder = _shim_folder(folder / "bin", names)
    threads = str(budget.cpus)
    # Bash finds a function first: these hold where a login shell, a module or a venv puts other
    # folders before ours.
    functions = {f"BASH_FUNC_{name}%%": f'() {{ "{shim_folder / name}" "$@"; }}' for name in names}
    return {
        **fetchers.OFFLINE,
        **order.environ,
        **functions,
        **gpu_environment.environment(
            order.gpu, job.gpus[0], traces, job.environ.get("PYTHONPATH")
        ),
        **{
            f"XMEM_DEVICE_COUNT_HET_GROUP_{n}": str(gpus)
            for n, gpus in enumerate(job.gpus)
            if len(job.gpus) > 1
        },
        **gpu_environment.preloaded(job.environ.get("LD_PRELOAD")),
        "PATH": os.pathsep.join([str(shim_folder), job.environ.get("PATH", os.defpath)]),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",  # a thread that waits for the others would spend the budget
        **fetchers.ONCE,
        "XMEM_ACTIVE": "1",
        "XMEM_SHIMS": str(shim_folder),
        shim.STAND_INS: str(builder.cache_folder()),
        "XMEM_DEVICE_BUILD": json.dumps([sys.executable, "-I", "-S", ask.__file__, str(folder)]),
        "XMEM_DEVICE_PLANS": str(traces / "plans"),
        "XMEM_LIMITS": json.dumps({name: job.environ.get(name) for name in _LIMITS}),
        "XMEM_PROFILE_MEMORY_BYTES": str(budget.memory_bytes),
        "XMEM_CPU_SECONDS": str(budget.seconds - LAST_WORDS_SECONDS),
        "XMEM_DEADLINE": str(time.monotonic() + budget.longest - LAST_WORDS_SECONDS),
    }


def _shim_folder(folder: Path, names: Sequence[str]) -> Path:
    folder.mkdir()
    for name in names:
        _write_program(folder / name, f'{_START}{name} "$@"\n'.encode())
    return folder


def _write_program(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o700)
    return path


_NOT_BUILT = (
    "the stand-in CUDA libraries, which are compiled once for a torch, were not done in "
    f"{build_server.BUILD_SECONDS / 60:.0f} minutes on this busy machine; `xmem-slurm device build "
    "FOLDER` compiles them without a limit, where FOLDER is that of the torch package "
    "(site-packages/torch)"
)


def _why_nothing(traces: Path, traces_read: Sequence[trace.Trace], outcome: sandbox.Outcome) -> str:
    """Say why nothing is known of GPU memory: in the words of a shim, by what a container's runtime
    said last, by how the script ended, or by what was met.
    """
    note = _first_note(traces / "notes.jsonl")
    if note is None and outcome.returncode and outcome.stopped is None:
        note = said.in_our_words(_last_line(outcome), _noted(traces / shim.STARTED))
    if note is not None:
        return note
    if outcome.stopped is not None:
        advice = "; a larger --xmem-budget gives it more" if outcome.stopped == "time" else ""
        return (
            f"the dry run was stopped at its {outcome.stopped} limit before any GPU memory was "
            f"used{advice}"
        )
    if any(trace_read.state == "importing" for trace_read in traces_read):
        died = f"a process died while it imported torch{_disturbed(outcome)}"
        return died + _last_words(outcome)
    unreached = not traces_read and _CUDA_LIBRARY_MISSING.search(outcome.output_tail)
    if outcome.returncode:
        unseen = "" if traces_read or unreached else f"; it {_NOT_LOADED} ({_HIDDEN})"
        last_words = _last_words(outcome) or unseen
        hidden = f"; {_UNREACHED}" if unreached else ""
        if _NO_TORCH in last_words:
            python = _lacking(traces)
            hidden = f"; {python} has none" if python else ""
            hidden += f"; {_ACTIVATED}"
        ended = f"the script ended with code {outcome.returncode} before any GPU memory was used"
        return f"{ended}{_disturbed(outcome)}{last_words}{hidden}"
    if traces_read:
        return _UNUSED
    not_loaded = f"the script {_NOT_LOADED}, so no GPU memory was estimated ({_HIDDEN})"
    return f"{_UNREACHED} (python -I, python -E and env -i hide it)" if unreached else not_loaded


def _first_note(notes: Path) -> str | None:
    try:
        return checked.plain(str(json.loads(untrusted.read(notes, MIB).partition(b"\n")[0])))[
            :_MOST_NOTED
        ]
    except FileNotFoundError:
        return None
    except untrusted.DAMAGE:
        return "the script wrote into the notes of its dry run"


_LOGGED = re.compile(r"(\[rank\d+\]:)?\[[IW]\d{4} ")
"""How torch's own log marks what is no error (c10/util/Logging.cpp): many a script ends with such
lines."""


_OWN_FOLDER = re.compile(rf"^/\S*/(?=slurm_script: )|/\S*/{_RUN}\w+/{shim.IMAGE}/root(?=/)")
"""Of the script's copy, which a shell names in its errors, and of an image as it is laid out, which
its runtime names: nobody's files."""
_FRAME = re.compile(r'\s*File "([^<"]+)", line (\d+)')


def _raised_at(lines: Sequence[str]) -> str:
    """Say which line of the user's own led to the exception whose traceback these lines end
    with.
    """
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if len(lines) < 2 or not lines[-2].startswith("  ") or lines[-1].startswith(" "):
        return ""
    users_frames = [
        frame for frame in map(_FRAME.match, lines) if frame and trace.is_users(frame[1])
    ]
    return f" ({users_frames[-1][1]}:{users_frames[-1][2]})" if users_frames else ""


def _last_line(outcome: sandbox.Outcome) -> str:
    lines = outcome.output_tail.decode(errors="replace").split("\n")
    last = next(
        (line.strip() for line in reversed(lines) if line.strip() and not _LOGGED.match(line)), ""
    )
    return checked.plain(_OWN_FOLDER.sub("", last))


def _last_words(outcome: sandbox.Outcome) -> str:
    lines = outcome.output_tail.decode(errors="replace").split("\n")
    last = _last_line(outcome)
    words = checked.plain(f": {last[:200]}{_raised_at(lines)}") if last else ""
    return words + (f" ({_read_only(outcome)})" if outcome.read_only else "")
