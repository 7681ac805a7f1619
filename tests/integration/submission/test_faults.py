"""Whatever script, disk or cluster xsbatch meets: the job or the error that sbatch would have made,
and no traceback.

Estimation is on, with a site file, unless said otherwise; a script that could be sized here would
say so on stderr."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cluster
from tests.harness.told import messages

pytestmark = pytest.mark.slurm

XSBATCH = str(Path(sys.executable).parent / "xsbatch")
GPU = b"#!/bin/bash\n#SBATCH --gres=gpu:h200:1 --output=/dev/null\n"


class Both:
    """Runs xsbatch and sbatch alike; the job's number is written JOB."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.environ = cluster.environ | {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.prefix: list[str] = []

    def run(self, program: str, *argv: str, **kwargs: object) -> tuple[int, str, str]:
        done = subprocess.run(
            [*self.prefix, program, "--hold", "--parsable", *argv],
            **{"cwd": self.folder, "env": self.environ, "stdin": subprocess.DEVNULL, "timeout": 60}
            | kwargs,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )  # type: ignore[call-overload]
        number = done.stdout.strip()
        if number.isdecimal():
            subprocess.run(["scancel", number], env=self.environ, check=True)
            return done.returncode, "JOB", messages(done.stderr)
        return done.returncode, done.stdout, messages(done.stderr)

    def same(self, *argv: str, **kwargs: object) -> str:
        """Check that the outcome is sbatch's, but for one line of ours at most. Return that
        line."""
        theirs = self.run("sbatch", *argv, **kwargs)
        code, out, err = self.run(XSBATCH, *argv, **kwargs)
        lines = err.splitlines(keepends=True)
        ours = [line for line in lines if line.startswith("xsbatch: ")]
        assert len(ours) <= 1
        assert (code, out, "".join(line for line in lines if line not in ours)) == theirs
        assert "Traceback" not in err
        return "".join(ours)


@pytest.fixture
def both(tmp_path: Path, cluster: Cluster) -> Both:
    return Both(tmp_path, cluster)


@pytest.fixture(params=[[], ["--gres=gpu:h200:1"]], ids=["no GPU", "a GPU"])
def argv(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.mark.parametrize(
    "script",
    [
        b"",
        b"\n",
        b"#!",
        b"#!\n",
        bytes(range(256)) * 64,
        b"\x7fELF" + bytes(4096),
        b"#!/bin/bash\n" + bytes(100),
        b"#!/bin/bash\n#SBATCH --comment=\xff\xfe\n\xff\n",
        b"#!/bin/bash\n" + b"#SBATCH " + b"x" * 100_000 + b"\n",
        b"#!/bin/bash\n" + b"# \n" * 100_000,
        b"#!/bin/bash\n" + b"'" * 10_001,
    ],
    ids=["0 bytes", "one line break", "#!", "no interpreter", "every byte", "ELF", "NUL", "not UTF-8", "one long word",
         "long comment", "open quotes"],
)  # fmt: skip
def test_odd_bytes(script: bytes, argv: list[str], both: Both) -> None:
    (both.folder / "odd.sh").write_bytes(script)
    both.same(*argv, "odd.sh")


def test_a_script_of_100_mb_is_not_looked_at(argv: list[str], both: Both) -> None:
    (both.folder / "huge.sh").write_bytes(GPU + b"# " + b"x" * 100_000_000 + b"\n")
    assert both.same(*argv, "huge.sh") == ""


def test_ten_thousand_arguments(argv: list[str], both: Both) -> None:
    (both.folder / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    both.same(*argv, "plain.sh", *(f"argument {number}" for number in range(10_000)))
    both.same(*[f"--comment={number}" for number in range(10_000)], *argv, "plain.sh")


@pytest.mark.parametrize("name", ["\udcff\udcfe.sh", "a b.sh", "-x.sh", "a\nb.sh", "ö.sh"])
def test_odd_names(name: str, argv: list[str], both: Both) -> None:
    (both.folder / name).write_text("#!/bin/sh\ntrue\n")
    both.same(*argv, "--", name)


def test_no_file_there_to_read(argv: list[str], both: Both) -> None:
    (both.folder / "loop.sh").symlink_to("loop.sh")
    (both.folder / "dangling.sh").symlink_to("nowhere")
    (both.folder / "folder.sh").mkdir()
    for name in ("loop.sh", "dangling.sh", "folder.sh", "missing.sh", "", "x" * 5000):
        assert both.same(*argv, name) == ""


def test_stdin_is_closed(argv: list[str], both: Both) -> None:
    both.prefix = ["sh", "-c", 'exec "$@" <&-', "sh"]
    assert both.same(*argv) == ""


@pytest.mark.skipif(os.getuid() != 0, reason="gives up root's capabilities")
def test_a_script_that_may_not_be_read(argv: list[str], both: Both) -> None:
    (both.folder / "secret.sh").write_text("#!/bin/sh\ntrue\n")
    (both.folder / "secret.sh").chmod(0)
    both.prefix = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    assert both.same(*argv, "secret.sh") == ""


@pytest.fixture
def pipe(both: Both) -> None:
    """Let a script come through a named pipe, once for each program that reads it."""
    (both.folder / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    os.mkfifo(both.folder / "pipe.sh")
    both.prefix = ["bash", "-c", 'cat plain.sh >pipe.sh & exec "$0" "$@"']


@pytest.mark.usefixtures("pipe")
def test_a_script_in_a_named_pipe(argv: list[str], both: Both) -> None:
    both.environ["XMEM_SITE"] = "/nowhere"
    both.same(*argv, "pipe.sh")


@pytest.mark.usefixtures("pipe")
def test_a_script_in_a_named_pipe_and_nowhere_to_keep_it(both: Both) -> None:
    (both.folder / "state").write_text("a file where a folder should be")
    assert "submitted as written" in both.same("pipe.sh")


@pytest.mark.parametrize(
    "command",
    [
        'exec "$0" "$@" <(cat plain.sh)',
        'cat plain.sh | "$0" "$@" /dev/stdin',
        'exec "$0" "$@" /dev/stdin <plain.sh',
        'cat plain.sh | "$0" "$@"',
    ],
)
def test_a_script_that_can_be_read_once(command: str, argv: list[str], both: Both) -> None:
    (both.folder / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    both.prefix = ["bash", "-c", command]
    both.same(*argv)


def test_found_through_path_and_chdir(argv: list[str], both: Both) -> None:
    for folder, name in (
        ("bin", "on-path"),
        ("work", "in-chdir"),
        ("work", "both"),
        ("bin", "both"),
    ):
        (both.folder / folder).mkdir(exist_ok=True)
        (both.folder / folder / name).write_text(f"#!/bin/sh\n#SBATCH --comment={folder}\ntrue\n")
        (both.folder / folder / name).chmod(0o755)
    both.environ["PATH"] = f"{both.folder / 'bin'}:{both.environ['PATH']}"
    for name in ("on-path", "in-chdir", "both"):
        both.same(*argv, "--chdir=work", name)
        both.same(*argv, name)


def test_no_slurmctld(both: Both) -> None:
    conf = both.folder / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\nMessageTimeout=2\n"
        "NodeName=localhost\nPartitionName=p Nodes=ALL\n"
    )
    both.environ |= {"SLURM_CONF": str(conf), "XMEM_SITE": "/nowhere"}
    (both.folder / "gpu.sh").write_bytes(GPU + b"true\n")
    theirs = both.run("sbatch", "gpu.sh")
    ours = both.run(XSBATCH, "gpu.sh")
    assert theirs[0] != 0
    assert ours[:2] == theirs[:2]
    assert ours[2].endswith(theirs[2])


@pytest.mark.torch
@pytest.mark.skipif(os.getuid() != 0, reason="mounts file systems")
@pytest.mark.parametrize("how", ["read-only home", "full disk"])
def test_nowhere_to_write(how: str, both: Both, job_python: Path) -> None:
    """What is ours to write has no room: the job goes as written, with the reason."""
    home = both.folder / "home"
    home.mkdir()
    both.environ = {k: v for k, v in both.environ.items() if not k.startswith("XDG_")} | {
        "HOME": str(home)
    }
    options = "ro" if how == "read-only home" else "size=4k,nr_inodes=2"
    (both.folder / "gpu.sh").write_bytes(
        GPU + f"{job_python} -c 'import torch; torch.ones(9).cuda()'\n".encode()
    )
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", home], check=True)
    try:
        assert messages(both.same("gpu.sh")).startswith("xsbatch: submitted as written: ")
    finally:
        subprocess.run(["umount", home], check=True)
