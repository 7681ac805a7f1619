"""Dry runs as a Slurm step on a CPU node: no Python of the job starts at the login, and no fault costs one."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, Cluster

pytestmark = pytest.mark.slurm

XSBATCH = str(Path(sys.executable).parent / "xsbatch")
TRAIN = """
import torch
model = torch.nn.Linear(2048, 2048, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.zeros(64, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STEP = '[dry_run]\nwhere = "srun"\npartition = "cpu"\n'

SRUN = {
    "srun says nonsense": "echo '[]'",
    "srun says nothing": "cat",
    "srun fails": "echo 'srun: error: of a kind' >&2; exit 1",
    "srun is killed": "kill -9 $$",
}
PATIENCE_SECONDS = 240
"""Ends a test that would hang; nothing is measured by it."""


class Login:
    """A login node on which the job's Python cannot be started: /bin/false covers it, seen from there alone."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.python = folder, folder / "python"
        self.environ = cluster.environ | {
            "XMEM_SITE": str(folder / "site.toml"),
            "XDG_STATE_HOME": str(folder / "state"),
            "SLURM_NTASKS": "7",  # would be an option to srun
        }
        self.python.write_text(f'#!/bin/sh\nexec {os.environ.get("XMEM_TEST_PYTHON", "python3")} "$@"\n')
        self.python.chmod(0o755)
        (folder / "train.py").write_text(TRAIN)
        (folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:h200:1\n{self.python} train.py\n")

    def submit(self, table: str, *argv: str, **more: str) -> tuple[str, str]:
        """Return the GRES of the job that was submitted, and what was said on stderr."""
        done = self.start(table, *argv, **more)
        number, said = done.communicate()
        assert done.returncode == 0, said
        shown = self.slurm("scontrol", "show", "job", number.strip())
        self.slurm("scancel", number.strip())
        return re.findall(r"TresPerNode=(.*)", shown)[0], said

    def start(self, table: str, *argv: str, **more: str) -> "subprocess.Popen[str]":
        site = EXAMPLE_SITE.read_text(encoding="utf-8").replace("[policy]", f"{table}\n[policy]")
        file = self.folder / "site.toml"
        if not file.exists() or file.read_text(encoding="utf-8") != site:
            file.write_text(site, encoding="utf-8")
        covered = 'mount --bind /bin/false "$0" && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", covered, str(self.python), XSBATCH, "--hold", "--parsable"]
        return subprocess.Popen(
            [*words, *argv, "job.sh"],
            cwd=self.folder,
            env=self.environ | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def slurm(self, *command: str) -> str:
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True).stdout

    def steps(self, *fields: str) -> list[str]:
        """Return these fields of the dry runs that Slurm has seen, running or not."""
        shown = self.slurm("scontrol", "--oneliner", "show", "jobs").splitlines()
        ours = [line for line in shown if "JobName=xmem-dry-run " in line]
        return [" ".join(re.findall(rf"(?<!\S){field}=(\S*)", line)[0] for field in fields) for line in ours]


@pytest.fixture
def login(tmp_path: Path, cluster: Cluster) -> Login:
    if os.getuid() != 0:
        pytest.skip("mounts file systems")
    return Login(tmp_path, cluster)


@pytest.mark.torch
def test_the_job_runs_dry_on_a_cpu_node_and_nowhere_else(login: Login) -> None:
    before = len(login.steps("JobId"))
    gres, said = login.submit(STEP + "cpus = 1\nmemory_mib = 9000\n")
    assert gres == "gres:gpu:l4:1", said
    (step,) = login.steps("NodeList", "JobState", "NumCPUs", "MinMemoryNode")[before:]
    assert step == "c1 COMPLETED 1 10024M"

    again = login.submit(STEP + "cpus = 1\nmemory_mib = 9000\n")
    assert again[0] == gres, again[1]
    assert "known since" in again[1]
    assert len(login.steps("JobId")) == before + 1


@pytest.mark.torch
def test_without_the_table_it_runs_where_it_is_submitted(login: Login) -> None:
    """The control: here the covered Python is met."""
    gres, said = login.submit("")
    assert gres == "gres:gpu:h200:1"
    assert "submitted as written" in said


@pytest.mark.torch
def test_what_is_wrong_with_the_job_comes_back(login: Login) -> None:
    login.python.write_text("#!/bin/sh\necho odd words of it >&2\nexit 3\n")
    gres, said = login.submit(STEP)
    assert gres == "gres:gpu:h200:1"
    assert "submitted as written: the script ended with code 3" in said
    assert "odd words of it" in said


@pytest.mark.parametrize("fault", [*SRUN, "no such partition", "the partition is full"])
def test_the_job_goes_as_written_where_the_step_does_not_answer(login: Login, fault: str) -> None:
    table, more, holder = STEP + "wait_seconds = 1\n", {}, None
    expected = "the dry run in partition cpu: "
    if fault == "no such partition":
        table, expected = table.replace('"cpu"', '"nowhere"'), "partition nowhere: .*[Ii]nvalid partition"
    elif fault == "the partition is full":
        holder = login.slurm("sbatch", "--parsable", "-pcpu", "--exclusive", "-o/dev/null", "--wrap=sleep 600").strip()
    else:
        programs = login.folder / "programs"
        programs.mkdir()
        (programs / "srun").write_text(f"#!/bin/sh\n{SRUN[fault]}\n")
        (programs / "srun").chmod(0o755)
        more = {"PATH": f"{programs}:{login.environ['PATH']}"}
    try:
        gres, said = login.submit(table, **more)
    finally:
        if holder is not None:
            login.slurm("scancel", holder)
    assert gres == "gres:gpu:h200:1"
    assert len(said.splitlines()) == 1
    assert re.search(f"^xsbatch: submitted as written: .*{expected}", said), said
    assert not {"RUNNING", "PENDING"} & set(login.steps("JobState"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_dry_run_ends_with_what_asked_for_it(login: Login, number: signal.Signals) -> None:
    login.python.write_text("#!/bin/sh\nsleep 600\n")
    before = len(login.steps("JobId"))
    asking = login.start(STEP)
    wait_until(lambda: login.steps("JobState")[before:] == ["RUNNING"])
    asking.send_signal(number)
    asking.communicate()
    assert asking.returncode == -number
    wait_until(lambda: "RUNNING" not in login.steps("JobState"))


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)
