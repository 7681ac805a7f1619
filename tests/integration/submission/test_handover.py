"""How xsbatch ends: what sbatch, the shell and the job find is what they would find without it."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Cluster, wait_until
from tests.harness.told import messages

XSBATCH = str(Path(sys.executable).parent / "xsbatch")
PLAIN = "#!/bin/bash\n#SBATCH --output=/dev/null\ntrue\n"
GPU = "#!/bin/bash\n#SBATCH --gres=gpu:h200:1 --output=/dev/null\n"

RECORDER = r"""#!/bin/sh
[ "$1" != --help ] || exit 0
{ printf '%s\0' "$#" "$@"; } >"$RECORD/argv"
while read -r line; do case $line in Sig[BIC]*) printf '%s\n' "$line";; esac; done </proc/self/status >"$RECORD/signals"
echo /proc/self/fd/* >"$RECORD/descriptors"
pwd >"$RECORD/folder"
umask >"$RECORD/umask"
cat "/proc/$$/environ" >"$RECORD/environ"
[ -t 0 ] || [ ! -e /proc/self/fd/0 ] || cat >"$RECORD/stdin"
"""
"""Builtins of the shell where a process that it starts would show: in its signals and
descriptors."""


class Recorder:
    """A program in sbatch's place that writes down what it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.conf.touch()
        self.program = folder / "bin" / "sbatch"
        self.program.parent.mkdir()
        self.program.write_text(RECORDER)
        self.program.chmod(0o755)

    def run(
        self, command: list[str], environ: Mapping[str, str], stdin: bytes = b"", **kwargs: object
    ) -> dict[str, bytes]:
        record = self.folder / "record"
        shutil.rmtree(record, ignore_errors=True)
        record.mkdir()
        path = os.pathsep.join([str(self.program.parent), os.defpath])
        subprocess.run(
            command,
            env={
                "PATH": path,
                "RECORD": str(record),
                "HOME": str(self.folder),
                "SLURM_CONF": str(self.conf),
                **environ,
            },
            input=stdin,
            cwd=self.folder,
            check=True,
            **kwargs,  # type: ignore[call-overload]
        )
        found = {file.name: file.read_bytes() for file in record.iterdir()}
        lines = found["environ"].split(b"\0")
        ours_or_a_shells = (b"XMEM_SUBMITTING=", b"_=", b"PWD=", b"OLDPWD=")
        found["environ"] = b"\0".join(
            sorted(line for line in lines if not line.startswith(ours_or_a_shells))
        )
        return found


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / "plain.sh").write_text(PLAIN)
    (tmp_path / "gpu.sh").write_text(GPU + "true\n")
    return Recorder(tmp_path)


@pytest.mark.parametrize(
    ("argv", "environ", "stdin"),
    [
        (["plain.sh", "a b", "", "\udce9", "--", "-x"], {}, b""),
        (["--wrap", "true", "-J", "x"], {"LANG": "C"}, b""),
        (["-Hq", "x"], {"LC_ALL": "C", "ODD": "a\nb=c", "BYTES": "\udcff\udcfe"}, PLAIN.encode()),
        ([], {"LC_CTYPE": "C.UTF-8"}, b"#!/bin/sh\n# \xff\xfe\n"),
        (["gpu.sh"], {"XMEM_SITE": "/nowhere"}, b""),
        (["--xmem-off", "plain.sh"], {"LC_CTYPE": "POSIX"}, b""),
    ],
)
def test_sbatch_is_given_what_it_would_have_been_given(
    argv: list[str], environ: dict[str, str], stdin: bytes, recorder: Recorder
) -> None:
    words = [word for word in argv if not word.startswith("--xmem")]
    assert recorder.run([XSBATCH, *argv], environ, stdin) == recorder.run(
        ["sbatch", *words], environ, stdin
    )


@pytest.mark.parametrize("ignored", ["INT", "HUP", "TERM"])
def test_a_signal_that_was_ignored_stays_so_and_no_other(ignored: str, recorder: Recorder) -> None:
    def run(program: str) -> bytes:
        return recorder.run(
            ["sh", "-c", f"trap '' {ignored}; {program} plain.sh"], {}, restore_signals=True
        )["signals"]

    assert run(XSBATCH) == run("sbatch")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_descriptors(closed: str, recorder: Recorder) -> None:
    ours = recorder.run(
        ["sh", "-c", f"exec {XSBATCH} plain.sh {closed}"], {"XMEM_SITE": "/nowhere"}
    )
    theirs = recorder.run(["sh", "-c", f"exec sbatch plain.sh {closed}"], {})
    assert ours["argv"] == theirs["argv"]


def test_nobody_reads_stderr(recorder: Recorder) -> None:
    """A job is not lost because our line about it is."""
    read, write = os.pipe()
    os.close(read)
    found = recorder.run([XSBATCH, "gpu.sh"], {"XMEM_SITE": "/nowhere"}, stderr=write)
    os.close(write)
    assert found["argv"] == b"1\0gpu.sh\0"


def test_a_terminal_stays_one(recorder: Recorder) -> None:
    """sbatch talks to the terminal itself; and refuses at once what it would refuse before a script
    is typed."""
    for argv in (["--wrap", "true"], ["plain.sh"], ["--nonsense"], ["--gres"]):
        parent, child = pty.openpty()
        record = recorder.folder / "record"
        shutil.rmtree(record, ignore_errors=True)
        record.mkdir()
        environ = {
            "PATH": f"{recorder.program.parent}:{os.defpath}",
            "RECORD": str(record),
            "HOME": "/nowhere",
        }
        subprocess.run(
            [XSBATCH, *argv],
            cwd=recorder.folder,
            env=environ,
            stdin=child,
            stdout=child,
            stderr=child,
            check=True,
            timeout=30,
        )
        os.close(parent)
        os.close(child)
        assert not (record / "stdin").exists()
        assert (record / "argv").read_bytes() == b"".join(
            b"%b\0" % word.encode() for word in [str(len(argv)), *argv]
        )


def test_a_wrapper_called_sbatch_that_calls_xsbatch_does_not_go_in_circles(
    recorder: Recorder,
) -> None:
    site = recorder.folder / "site"
    site.mkdir()
    for line in (f'exec {XSBATCH} "$@"', f'{XSBATCH} "$@"'):
        (site / "sbatch").write_text(f"#!/bin/sh\n{line}\n")
        (site / "sbatch").chmod(0o755)
        path = os.pathsep.join([str(site), str(recorder.program.parent), os.defpath])
        found = recorder.run([XSBATCH, "plain.sh"], {"PATH": path})
        assert found["argv"] == b"1\0plain.sh\0"
        assert (
            found["environ"]
            == recorder.run([str(recorder.program), "plain.sh"], {"PATH": path})["environ"]
        )


def test_under_the_name_of_sbatch(recorder: Recorder) -> None:
    first = recorder.folder / "first"
    first.mkdir()
    (first / "sbatch").symlink_to(XSBATCH)
    path = os.pathsep.join([str(first), str(recorder.program.parent), os.defpath])
    found = recorder.run(["sbatch", "--xmem-off", "plain.sh"], {"PATH": path})
    assert found["argv"] == b"1\0plain.sh\0"


def test_in_a_dry_run_nothing_is_submitted(recorder: Recorder) -> None:
    shims = recorder.folder / "shims"
    shims.mkdir()
    (shims / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 0\n")
    (shims / "sbatch").chmod(0o755)
    environ = {
        "PATH": f"{shims}:{recorder.program.parent}:{os.defpath}",
        "XMEM_ACTIVE": "1",
        "XMEM_SHIMS": str(shims),
    }
    done = subprocess.run(
        [XSBATCH, "gpu.sh"],
        env=environ,
        cwd=recorder.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 0\n", "")


# On a real cluster


class Submitter:
    """Runs sbatch and xsbatch in one folder against the same cluster."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.environ = cluster.environ | {
            "XMEM_SITE": str(folder / "no-site.toml"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def __call__(self, program: str, *argv: str, **environ: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [program, *argv],
            cwd=self.folder,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        out, err = (
            re.sub(r"\b\d+(?=$|;| to start)", "JOB", text) for text in (done.stdout, done.stderr)
        )
        return done.returncode, out, re.sub(r"to start at \S+", "to start", err)


@pytest.fixture
def submitter(tmp_path: Path, cluster: Cluster) -> Submitter:
    (tmp_path / "plain.sh").write_text(PLAIN)
    return Submitter(tmp_path, cluster)


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("argv", "environ", "code"),
    [
        (["-H", "plain.sh"], {}, 0),
        (["-H", "--parsable", "plain.sh"], {}, 0),
        (["-H", "-Q", "plain.sh"], {}, 0),
        (["-H", "--test-only", "plain.sh"], {}, 0),
        (["-W", "--wrap", "exit 7"], {}, 7),
        (["-W", "--wrap", "kill -9 $$"], {}, 1),
        (["-H", "--constraint=nonsense", "plain.sh"], {}, 1),
        (["-H", "--constraint=nonsense", "plain.sh"], {"SLURM_EXIT_ERROR": "42"}, 42),
        (["-H", "missing.sh"], {"SLURM_EXIT_ERROR": "42"}, 42),
        (["-H", "--nonsense", "plain.sh"], {}, 255),
        (["-H", "-v", "plain.sh"], {}, 0),
    ],
)
def test_exit_code_and_output(
    argv: list[str], environ: dict[str, str], code: int, submitter: Submitter
) -> None:
    theirs = submitter("sbatch", *argv, **environ)
    ours = submitter(XSBATCH, *argv, **environ)
    if "-v" in argv:
        theirs, ours = (*theirs[:2], ""), (*ours[:2], "")  # where sbatch tells of its own process
    assert ours == theirs
    assert ours[0] == code


@pytest.mark.slurm
@pytest.mark.parametrize("word", ["--help", "-h", "--usage", "--version", "-V"])
def test_help_and_version_show_both(word: str, submitter: Submitter) -> None:
    code, ours, _ = submitter(XSBATCH, word)
    _, theirs, _ = submitter("sbatch", word)
    assert code == 0
    assert ours.endswith(theirs)
    assert ours.startswith("xsbatch")
    assert ours != theirs


@pytest.mark.slurm
def test_quiet_means_us_too(submitter: Submitter) -> None:
    """What is not sized is said all the same: sbatch's -Q keeps its errors."""
    (submitter.folder / "gpu.sh").write_text(GPU + "true\n")
    code, out, err = submitter(XSBATCH, "-H", "-Q", "gpu.sh")
    assert (code, out) == (0, "")
    assert messages(err).startswith("xsbatch: submitted as written: ")


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_during_the_dry_run_submits_nothing_and_leaves_nothing(
    name: str, cluster: Cluster, tmp_path: Path, job_python: Path
) -> None:
    (tmp_path / "gpu.sh").write_text(
        f"{GPU}touch {tmp_path}/never\n{job_python} -c 'import time; time.sleep(300)'\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = cluster.environ | {"TMPDIR": str(scratch), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    before = subprocess.run(["squeue", "-h"], env=environ, capture_output=True, check=True).stdout
    process = subprocess.Popen(
        [XSBATCH, "gpu.sh"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: bool(list(scratch.glob("xmem-*/slurm_script"))))
    time.sleep(0.5)  # the script is running by now
    process.send_signal(getattr(signal, name))
    out, err = process.communicate()
    assert process.returncode == -getattr(signal, name)  # a shell says 130 of Ctrl-C
    assert (out, err) == (b"", b"")
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "never").exists()
    assert (
        subprocess.run(["squeue", "-h"], env=environ, capture_output=True, check=True).stdout
        == before
    )


@pytest.mark.slurm
def test_two_hundred_at_once(submitter: Submitter) -> None:
    """Six at a time, as many as a busy login node's shells would; every one is in the queue, each
    once."""
    numbers: list[str] = []
    lock, todo = threading.Lock(), iter(range(200))

    def work() -> None:
        while True:
            with lock:
                index = next(todo, None)
            if index is None:
                return
            environ = submitter.environ
            done = subprocess.run(
                [XSBATCH, "-H", "--parsable", "-J", f"many{index}", "plain.sh"],
                cwd=submitter.folder,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            with lock:
                numbers.append(done.stdout.strip())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 200
    queued = subprocess.run(
        ["squeue", "-h", "-o", "%j"],
        env=submitter.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {name for name in queued.stdout.split() if name.startswith("many")} == {
        f"many{n}" for n in range(200)
    }
    subprocess.run(["scancel", *numbers], env=submitter.environ, check=True)
