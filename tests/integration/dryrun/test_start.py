"""xsbatch, xmem-slurm and the filter start whatever the user's environment does to Python, and hand
it on untouched."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import xmem_slurm
from tests.conftest import XMEM_SLURM, XSBATCH
from tests.harness.told import messages

PATH = os.defpath
TREASON = 'import sys; sys.stderr.write("here\\n"); '
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"

ENVIRONMENTS = {
    "nothing": {},
    "PYTHONHOME": {"PYTHONHOME": "/nonexistent"},
    "sitecustomize raises": {"PYTHONPATH": "raises"},
    "sitecustomize exits": {"PYTHONPATH": "exits"},
    "usercustomize raises": {"HOME": "home"},
    "usercustomize of another base": {"PYTHONUSERBASE": "home/.local"},
    "a json.py on PYTHONPATH": {"PYTHONPATH": "."},
    "warnings are errors": {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
    "inspect": {
        "PYTHONINSPECT": "1",
        "PYTHONSTARTUP": "raises/sitecustomize.py",
        "PYTHONVERBOSE": "1",
    },
    "no bytecode": {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONOPTIMIZE": "2", "PYTHONUNBUFFERED": "1"},
    "C locale": {
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "C",
        "NAME": "\udce9t\udcff",
    },
    "C locale, coerced": {"LC_CTYPE": "C", "LANG": "C"},
    "a wrong PYTHONUTF8": {"PYTHONUTF8": "maybe", "PYTHONIOENCODING": "no-such-encoding"},
    "a wrong allocator": {"PYTHONMALLOC": "no-such-allocator", "PYTHONHASHSEED": "-7"},
    "functions": {
        "BASH_FUNC_module%%": '() {  eval "$(x)"\n}',
        "not-a-name": "1",
        "1": "2",
        "a.b": "",
    },
    "what a shell sets": {
        "PWD": "/wrong",
        "OLDPWD": "/nowhere",
        "SHLVL": "x",
        "_": "/y",
        "IFS": "x",
        "OPTIND": "9",
    },
    "lines": {"TEXT": "a\nb\n\nXMEM_BLOCKS=9\n", "XMEM_BLOCK_3": "x", "PS4": "+"},
    "much": {f"LONG_{n}": "y" * 100_000 for n in range(4)},
    "no PATH": {"PATH": ""},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder to start from, full of traps."""
    user = tmp_path / "home" / ".local" / "lib" / VERSION / "site-packages"
    for place in (tmp_path / "raises", tmp_path / "exits", user):
        place.mkdir(parents=True)
    (tmp_path / "raises" / "sitecustomize.py").write_text(f"{TREASON}raise SystemError")
    (tmp_path / "exits" / "sitecustomize.py").write_text(f"{TREASON}sys.exit(3)")
    (user / "usercustomize.py").write_text(f"{TREASON}raise SystemError")
    for name in ("json", "signal", "site", "xmem_slurm", "typing"):
        (tmp_path / f"{name}.py").write_text(f"{TREASON}raise SystemError")
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    return tmp_path


def handed_on(folder: Path, environ: Mapping[str, str], *argv: str) -> tuple[bytes, bytes, int]:
    """Submit with `env` in place of sbatch, which prints what it is given."""
    done = subprocess.run(
        [XSBATCH, *argv],
        cwd=folder,
        env=environ,
        input=b"#!/bin/sh\n",
        capture_output=True,
        check=False,
    )
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_is_handed_on_as_it_was(name: str, folder: Path) -> None:
    environ = {
        "XMEM_SBATCH": shutil.which("env") or "",
        "PATH": PATH,
        "HOME": str(folder),
        **ENVIRONMENTS[name],
    }
    expected = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environ.items())
    assert handed_on(folder, environ, "--null") == (expected, b"", 0)
    off = {**environ, "XMEM_OFF": "1"}
    assert handed_on(folder, off, "--null") == (expected + b"XMEM_OFF=1\0", b"", 0)
    done = subprocess.run(
        [XMEM_SLURM, "--version"], cwd=folder, env=environ, capture_output=True, check=False
    )
    assert (done.stdout.split()[0], done.stderr, done.returncode) == (b"xmem-slurm", b"", 0)


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"])
def test_whatever_shell_is_sh(shell: str, folder: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    (folder / "sh").symlink_to(program)
    odd = {**ENVIRONMENTS["functions"], **ENVIRONMENTS["what a shell sets"]}
    environ = {"XMEM_SBATCH": shutil.which("env") or "", **odd}
    expected = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environ.items())
    command = [folder / "sh", XSBATCH, "--xmem-off", "--null"]
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (expected, b"", 0)


def test_a_preloaded_file_that_is_missing(folder: Path) -> None:
    """The loader says so of each process; those of ours are spared what can be spared."""
    environ = {"XMEM_SBATCH": shutil.which("env") or "", "LD_PRELOAD": "/nonexistent.so"}
    out, said, code = handed_on(folder, environ, "--null", "--unset=XMEM_SBATCH")
    assert (out, code) == (b"LD_PRELOAD=/nonexistent.so\0", 0)
    assert said.count(b"\n") == said.count(b"/nonexistent.so") == 2  # /bin/sh and sbatch


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a folder with the launchers, as an installation has them, and an `sbatch` of its
    own."""
    for name in ("xsbatch", "xmem-slurm", "xmem-slurm-python"):
        shutil.copy(Path(XSBATCH).with_name(name), tmp_path)
    real = tmp_path / "real"
    real.mkdir()
    (real / "sbatch").write_text('#!/bin/sh\necho "$@"\n')
    (real / "sbatch").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_user_who_may_start_no_process_still_submits(shell: str, tmp_path: Path) -> None:
    """A login node's limit of processes is used up: a shell that cannot fork ends at once."""
    if os.getuid() != 0 or shutil.which(shell) is None:
        pytest.skip("root makes a user of whom nothing runs")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        for program in ("xsbatch", "xmem-slurm-python"):
            shutil.copy(Path(XSBATCH).with_name(program), place)
        for called, program in (("sbatch", "/bin/echo"), ("python3", "/bin/true")):
            (place / called).symlink_to(program)
        (place / "xmem-slurm-python").write_text("#!/nonexistent\n")
        limited = ["bash", "-c", 'ulimit -u 1; exec "$@"', "limited", shell, place / "xsbatch"]
        done = subprocess.run(
            [
                "setpriv",
                "--reuid=54321",
                "--regid=54321",
                "--clear-groups",
                *limited,
                "--xmem-report=x",
                "-n 1",
                "a b",
            ],
            env={"PATH": f"{place}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "-n 1 a b\n"), done.stderr
    assert "xsbatch: submitted as written: it could not be started" in done.stderr


def _writer(fifo: Path, reader: "subprocess.Popen[bytes]") -> int:
    """Open a FIFO as soon as somebody reads it, who then waits for what never comes."""
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert reader.poll() is None
            time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_whom_a_signal_ends_meanwhile_submits_nothing(
    shell: str, number: signal.Signals, copied: Path
) -> None:
    """A Ctrl-C while the shell waits for a file that does not come."""
    (copied / "xmem-slurm-python").unlink()
    os.mkfifo(copied / "xmem-slurm-python")
    with subprocess.Popen(
        [shutil.which(shell) or "sh", copied / "xsbatch", "job.sh"],
        env={"PATH": f"{copied / 'real'}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - what runs tests may ignore it
    ) as started:
        writer = _writer(copied / "xmem-slurm-python", started)
        while started.poll() is None:  # one that comes just before it reads waits until it has read
            started.send_signal(number)
            time.sleep(0.05)
        assert started.stdout is not None
        assert (started.stdout.read(), started.wait(60)) == (b"", -number)
        os.close(writer)


@pytest.mark.parametrize("how", ["no interpreter", "no first line", "no package"])
def test_where_its_python_is_gone_the_job_goes_as_it_was_written(how: str, copied: Path) -> None:
    start = copied / "xmem-slurm-python"
    text = start.read_text().partition("\n")[2]
    (copied / "lib").mkdir()
    if how == "no first line":
        start.unlink()
    elif how == "no interpreter":
        start.write_text(f"#!{copied}/gone/python\n{text}")
    else:
        # the Python that the environment was made of
        start.write_text(f"#!{Path(sys.executable).resolve()}\n{text}")
    environ = {"PATH": f"{copied}:{copied}/real:{PATH}", "HOME": str(copied)}
    (copied / "sbatch").symlink_to("xsbatch")  # a site may have it so

    def run(name: str, *argv: str, **more: str) -> tuple[int, str, str]:
        command = [copied / name, *argv]
        done = subprocess.run(
            command, env={**environ, **more}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    for name in ("xsbatch", "sbatch"):
        code, out, said = run(name, "-J", "a b", "--xmem-keep-type", "job.sh", "")
        assert (code, out) == (0, "-J a b job.sh \n")
        assert messages(said).startswith("xsbatch: submitted as written: ")
        assert said.count("\n") == 1
        assert "installed again" in said
    assert run("xsbatch", "--xmem-dry-run", "job.sh")[:2] == (1, "")
    assert run("xsbatch", "job.sh", XMEM_DRY_RUN="1")[:2] == (1, "")
    assert run("xmem-slurm", "--version")[:2] == (1, "")
    code, out, said = run("xsbatch", "job.sh", PATH=str(copied))
    assert (code, out, said.count("\n")) == (1, "", 2)
    assert said.endswith("sbatch: not found on PATH\n")


def test_an_installation_below_the_users_home(copied: Path) -> None:
    """`pip install --user`: an isolated Python does not look there by itself."""
    place = copied / ".local" / "lib" / VERSION / "site-packages"
    place.mkdir(parents=True)
    (place / "ours.pth").write_text(str(Path(xmem_slurm.__file__).parents[1]))
    start = copied / "xmem-slurm-python"
    start.write_text(
        f"#!{Path(sys.executable).resolve()}\n{start.read_text().partition(chr(10))[2]}"
    )
    environ = {"PATH": f"{copied}/real:{PATH}", "HOME": str(copied)}
    command = [copied / "xsbatch", "--xmem-off", "job.sh"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "job.sh\n", "")


def test_a_wrapper_that_calls_a_broken_xsbatch_is_left_behind(copied: Path) -> None:
    (copied / "xmem-slurm-python").unlink()
    wrapper = copied / "wrapper" / "sbatch"
    wrapper.parent.mkdir()
    for call in ("xsbatch", "exec xsbatch"):
        wrapper.write_text(f'#!/bin/sh\n{call} --comment=wrapped "$@"\n')
        wrapper.chmod(0o755)
        environ = {"PATH": f"{wrapper.parent}:{copied}:{copied}/real:{PATH}"}
        done = subprocess.run(
            [copied / "xsbatch", "job.sh"], env=environ, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "--comment=wrapped job.sh\n"), done.stderr
