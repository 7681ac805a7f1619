"""How do we reach Slurm: where is the real sbatch, which file would it submit, and what do Slurm's
commands answer?

The only module of this package that touches the world.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm.errors import SlurmError
from xmem_slurm.slurm.edit import without
from xmem_slurm.slurm.options import NONE, REQUIRED, Option
from xmem_slurm.slurm.submission import Submission

_OURS = b"xmem_slurm.cli.xsbatch"
_START = re.compile(r" to start at (\d+)")
"""What `sbatch --test-only` says on stderr (src/sbatch/sbatch.c), with the time in
SLURM_TIME_FORMAT."""

NO_SBATCH = "sbatch: not found on PATH"
_NO_CLUSTER = re.compile(
    f"{NO_SBATCH}|establish a configuration source|contact slurm controller", re.IGNORECASE
)
"""What sbatch says where there is none to ask (src/common/slurm_errno.c and read_config.c, 22.05 to
25.11)."""

_HEAD_BYTES = 4096
"""How much of a program is read to see whether it is ours: an entry point names its module in its
first lines."""

_GUARD = "XMEM_SUBMITTING"
"""`pid:path`: the program that xsbatch became, where that is a script, as a site's own wrapper
around sbatch is."""

_PLUGINS = "Options provided by plugins:"
"""The headline of `sbatch --help` above the options of SPANK plugins (src/common/spank.c,
spank_print_options)."""


TRIAL_SECONDS = 20.0

MOST_SCRIPT_BYTES = 16 << 20
"""A longer script is not looked at: Slurm takes 4 MiB unless a site allows more (slurm.conf(5),
max_script_size)."""


def find_sbatch(environ: Mapping[str, str]) -> Path:
    """Return the real sbatch: XMEM_SBATCH if set, else the first on PATH that is not xsbatch under
    another name.

    In a dry run it is the one that submits nothing (XMEM_SHIMS). A program that leads back here, as
    a site's wrapper called sbatch does which calls xsbatch, is passed over, and all before it on
    PATH.

    Raises:
        SlurmError: there is none.
    """
    if "XMEM_SHIMS" in environ:
        return Path(environ["XMEM_SHIMS"]) / "sbatch"
    tried = _led_back(environ)
    named = environ.get("XMEM_SBATCH")
    if named:
        if not _is_program(Path(named)):
            raise SlurmError(f"XMEM_SBATCH={named}: no program there")
        if tried == named:
            raise SlurmError(
                f"XMEM_SBATCH={named}: this calls xsbatch; set it to the real sbatch's path"
            )
        return Path(named)
    programs = [
        Path(folder or ".") / "sbatch"
        for folder in environ.get("PATH", os.defpath).split(os.pathsep)
    ]
    places = [str(program) for program in programs]
    for program in programs[places.index(tried) + 1 if tried in places else 0 :]:
        # a site may install us as `sbatch` before it
        if _is_program(program) and _OURS not in _head(program):
            return program
    raise SlurmError(
        f"{NO_SBATCH}; install Slurm's client commands, or set XMEM_SBATCH to sbatch's path"
    )


def guarded(environ: Mapping[str, str], sbatch: Path) -> dict[str, str]:
    """Return the environment for this sbatch: a script is marked, lest it lead back here for ever.

    The job of a site whose sbatch is a script sees that mark in its environment; no other job does.
    """
    unmarked = {name: value for name, value in environ.items() if name != _GUARD}
    if not _head(sbatch).startswith(b"#!"):
        return unmarked
    return unmarked | {_GUARD: f"{os.getpid()}:{sbatch}"}


def _led_back(environ: Mapping[str, str]) -> str | None:
    """Return the path of the program that we became and that called us again, or None."""
    process, _, path = environ.get(_GUARD, "").partition(":")
    return path if process in {str(os.getpid()), str(os.getppid())} else None


def find_script(job: Submission) -> Path | None:
    """Return the file that sbatch reads as the script, or None if there is none to read.

    sbatch looks for a name that begins with neither "/" nor "." in the folder that `--chdir` names
    on the command line (else the current one), then on PATH, and takes the first that exists and is
    no folder; only then the name as it is (src/common/proc_args.c, search_path). Whether the file
    can be read does not matter there: sbatch says so itself.
    """
    name = job.command_line.script
    if not name:
        return None
    candidates = [Path(name)]
    if name[0] not in "./":
        path = [folder for folder in job.environ.get("PATH", "").split(os.pathsep) if folder]
        candidates = [
            Path(folder) / name for folder in (job.command_line.last("chdir") or ".", *path)
        ] + candidates
    for candidate in candidates:
        mode = _mode(candidate)
        if mode is not None and not stat.S_ISDIR(mode):
            return candidate
    return None


def plugin_options(sbatch: Path, timeout: float = 10) -> tuple[Option, ...]:
    """Return the options that the site's SPANK plugins add to sbatch, as its `--help` lists them.

    The list tells whether an option has a value, not whether the value is optional; that is rare
    and would be wrong.

    Raises:
        SlurmError: sbatch fails.
    """
    _, headline, listed = run([str(sbatch), "--help"], timeout).partition(_PLUGINS)
    options: list[Option] = []
    for line in listed.splitlines() if headline else ():
        if not line.strip() and options:
            break
        word = line.strip().partition(" ")[0]
        if word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            options.append(Option(name, "", REQUIRED if equals else NONE))
    return tuple(options)


def check_accepted(sbatch: Path, job: Submission, *, by_file: bool = False) -> None:
    """Ask Slurm whether it would take a job that we have changed (`refused`).

    Raises:
        SlurmError: it would not; the message has Slurm's own words.
    """
    words = refused(sbatch, job, by_file=by_file)
    if words is not None:
        raise SlurmError(f"Slurm would refuse the changed request ({words})")


def refused(
    sbatch: Path, job: Submission, timeout: float = 10, *, by_file: bool = False
) -> str | None:
    """Ask Slurm whether it would take a job (`sbatch --test-only`: nothing is queued); return why
    if it would not.

    The words are its own; silence counts as yes. The script goes to its stdin, as there need be no
    file of it; or it has it `by_file`, as it is submitted.
    """
    line = job.command_line
    argv = job.argv if by_file else job.argv[: line.script_index]
    stdin = None if by_file and not line.reads_stdin else job.script
    code, words = _try_out(sbatch, argv, job.environ, stdin, timeout)
    return words.strip().rpartition("\n")[2] if code != 0 else None


def is_no_cluster(words: str) -> bool:
    """Whether it is for want of a cluster that sbatch said this."""
    return _NO_CLUSTER.search(words) is not None


def expected_start(sbatch: Path, job: Submission, timeout: float) -> float | None:
    """Ask Slurm when it would start a job (`--test-only`), in seconds since the epoch.

    Infinity where it refuses the job, None where it does not say, or is not there. The script goes
    to sbatch's stdin, as it is in `job`: there need be no file of it. A quiet sbatch would say
    nothing.
    """
    line = job.command_line
    argv = without(
        job.argv[: line.script_index],
        [occurrence for occurrence in line.occurrences if occurrence.name == "quiet"],
    )
    code, words = _try_out(
        sbatch, argv, {**job.environ, "SLURM_TIME_FORMAT": "%s"}, job.script, timeout
    )
    if code != 0 and words:
        return None if is_no_cluster(words) else float("inf")
    start = _START.search(words)
    return float(start[1]) if start is not None else None


def _try_out(
    sbatch: Path,
    argv: Sequence[str],
    environ: Mapping[str, str],
    stdin: bytes | None,
    timeout: float,
) -> tuple[int, str]:
    """Run `sbatch --test-only`; return its exit status and stderr: 0 and nothing where it does not
    answer in time.
    """
    import subprocess  # noqa: PLC0415 - not on the way of a job that is not changed

    try:
        completed = subprocess.run(
            [sbatch, "--test-only", *argv],
            input=stdin or b"",
            env={**environ, "XMEM_ACTIVE": "1"},  # a site's filter has no part in this
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return 0, ""
    return completed.returncode, completed.stderr.decode(errors="replace")


def trial(sbatch: Path, partition: str, words: Sequence[str]) -> str | None:
    """Return why sbatch refuses these options in this partition, or None (`--test-only`: nothing is
    queued).
    """
    try:
        run(
            [
                str(sbatch),
                "--test-only",
                f"--partition={partition}",
                "--time=1",
                *words,
                "--wrap=true",
            ],
            TRIAL_SECONDS,
        )
    except SlurmError as error:
        return str(error)
    return None


def run(command: Sequence[str], timeout: float, environ: Mapping[str, str] | None = None) -> str:
    """Run a Slurm command and return what it prints on stdout; `timeout` in seconds.

    Raises:
        SlurmError: it cannot be started, takes too long or fails; the message has Slurm's own
            words.
    """
    import subprocess  # noqa: PLC0415 - most submissions ask Slurm nothing before sbatch itself

    name = Path(command[0]).name
    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            env=environ,
            capture_output=True,
            timeout=timeout,
            check=False,
            errors="surrogateescape",
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{name}: no answer within {timeout:g} s") from None
    except OSError as error:
        raise SlurmError(f"{name}: {error.strerror}") from error
    if completed.returncode != 0:
        words = " | ".join(line.strip() for line in completed.stderr.splitlines() if line.strip())
        raise SlurmError(f"{name} ended with {completed.returncode}: {words or 'it said nothing'}")
    return completed.stdout


def _is_program(path: Path) -> bool:
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode) and os.access(path, os.X_OK)


def _mode(path: Path) -> int | None:
    """Return what kind of file there is, or None: no file, a folder closed to us, a name no file
    can have.
    """
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return None


def _head(program: Path) -> bytes:
    """Return the beginning of a program; nothing of one that may be run but not read."""
    try:
        with program.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
