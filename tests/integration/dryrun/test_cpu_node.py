"""Dry runs as a Slurm step on a CPU node: no Python of the job starts at the login, and no fault
costs one."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import (
    EXAMPLE_SITE,
    USES,
    XMEM_SLURM,
    XSBATCH,
    Cluster,
    own_cache,
    wait_until,
    write_job,
)
from tests.harness.told import messages

pytestmark = pytest.mark.slurm

STEP = '[dry_run]\nwhere = "srun"\npartition = "cpu"\n'

SRUN = {
    "srun says nonsense": "echo '[]'",
    "srun says nothing": "cat",
    "srun fails": "echo 'srun: error: of a kind' >&2; exit 1",
    "srun is killed": "kill -9 $$",
}


class Login:
    """A login node on which the job's Python cannot be started: /bin/false covers it, seen from
    there alone."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.python = folder, cluster, folder / "python"
        self.environ = cluster.environ | {
            "XMEM_SITE": str(folder / "site.toml"),
            "XDG_STATE_HOME": str(folder / "state"),
            "SLURM_NTASKS": "7",  # would be an option to srun
        }
        self.python.write_text(
            f'#!/bin/sh\nexec {os.environ.get("XMEM_TEST_PYTHON", "python3")} "$@"\n'
        )
        self.python.chmod(0o755)
        write_job(folder, self.python, "--gres=gpu:h200:1", train=USES)

    def submit(self, table: str, *argv: str, **more: str) -> tuple[str, str]:
        """Return the GRES of the job that was submitted, and what was said on stderr."""
        done = self.start(table, *argv, **more)
        number, said = done.communicate()
        assert done.returncode == 0, said
        shown = self.cluster.slurm("scontrol", "show", "job", number.strip())
        self.cluster.slurm("scancel", number.strip())
        return re.findall(r"TresPerNode=(.*)", shown)[0], messages(said)

    def start(self, table: str, *argv: str, **more: str) -> "subprocess.Popen[str]":
        self.configure(table)
        return self.covered(XSBATCH, "--hold", "--parsable", *argv, "job.sh", **more)

    def configure(self, table: str) -> None:
        site = EXAMPLE_SITE.read_text(encoding="utf-8").replace("[policy]", f"{table}\n[policy]")
        file = self.folder / "site.toml"
        if not file.exists() or file.read_text(encoding="utf-8") != site:
            file.write_text(site, encoding="utf-8")

    def covered(self, *command: str, **more: str) -> "subprocess.Popen[str]":
        covered = 'mount --bind /bin/false "$0" && exec "$@"'
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", covered, str(self.python), *command],
            cwd=self.folder,
            env=self.environ | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def steps(self, *fields: str, name: str = "xmem-dry-run ") -> list[str]:
        """Return these fields of the dry runs that Slurm has seen, running or not, of jobs so
        named."""
        shown = self.cluster.slurm("scontrol", "--oneliner", "show", "jobs").splitlines()
        ours = [line for line in shown if f"JobName={name}" in line]
        return [
            " ".join(re.findall(rf"(?<!\S){field}=(\S*)", line)[0] for field in fields)
            for line in ours
        ]


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
        table = table.replace('"cpu"', '"nowhere"')
        expected = "partition nowhere: .*[Ii]nvalid partition"
    elif fault == "the partition is full":
        holder = login.cluster.slurm(
            "sbatch", "--parsable", "-pcpu", "--exclusive", "-o/dev/null", "--wrap=sleep 600"
        ).strip()
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
            login.cluster.slurm("scancel", holder)
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


WIDTHS = "import sys, torch\ntorch.zeros(4, int(sys.argv[1]) ** 2, device='cuda')\n"
"""With 40,000 it is 25.6 GB."""
ARRAY = "xmem-dry-runs-"
"""How the names of its jobs begin."""


@pytest.mark.torch
def test_the_points_of_a_sweep_run_dry_as_one_array_job(login: Login) -> None:
    """One of them fails, and asks for the largest GPU; two need another kind of GPU than the
    others."""
    (login.folder / "train.py").write_text(WIDTHS)
    login.configure(f"{STEP}at_once = 2\ncpus = 1\nmemory_mib = 9000\n")
    before, cache = len(login.steps("JobId", name=ARRAY)), own_cache(login.folder)
    words = [
        "--template",
        "sweep",
        "--grid",
        "width=1024,2048,40000,41000,wide",
        "--output",
        "jobs",
    ]
    done = login.covered(
        XMEM_SLURM, "generate", *words, "--", str(login.python), "train.py", "{width}", **cache
    )
    told = done.communicate()[1]
    assert done.returncode == 0, told
    scripts = {path.stem: path.read_text() for path in (login.folder / "jobs").iterdir()}
    assert sorted(scripts) == ["sweep-a100_40", "sweep-h200", "sweep-l4"], told
    assert (
        "not estimated: the script stopped with ValueError: invalid literal"
        in scripts["sweep-h200"]
    )
    wait_until(lambda: "RUNNING" not in login.steps("JobState", name=ARRAY))
    tasks = login.steps(
        "ArrayTaskId", "NodeList", "JobState", "NumCPUs", "MinMemoryNode", name=ARRAY
    )[before:]
    ran = " c1 COMPLETED 1 10024M"
    assert set(tasks) == {f"{task}{ran}" for task in range(5)}, told
    assert len(tasks) >= 7, "each ran once, and the two large ones on another kind of GPU, too"
    assert not list(Path(cache["XDG_CACHE_HOME"], "xmem-slurm").glob(f"{ARRAY}*"))


@pytest.mark.parametrize(
    "fault", ["no such partition", "the partition is full", "sbatch is missing"]
)
def test_a_sweep_whose_array_does_not_run_asks_for_the_largest_gpu(
    login: Login, fault: str
) -> None:
    table = f"{STEP}wait_seconds = 1\nseconds = 1\n"
    told = ""
    path = login.environ["PATH"]
    holder = ""
    if fault == "no such partition":
        table, told = table.replace('"cpu"', '"nowhere"'), "partition nowhere: .*nvalid partition"
    elif fault == "the partition is full":
        holder = login.cluster.slurm(
            "sbatch", "--parsable", "-pcpu", "--exclusive", "-o/dev/null", "--wrap=sleep 600"
        )
        told = "no answer within 31 s"
    else:
        path, told = "/nowhere", "sbatch: No such file"
    login.configure(table)
    words = [
        "generate",
        "--template",
        "sweep",
        "--grid",
        "width=1,2",
        "--",
        str(login.python),
        "train.py",
        "{width}",
    ]
    try:
        done = login.covered("/usr/bin/env", f"PATH={path}", XMEM_SLURM, *words)
        script, said = done.communicate()
    finally:
        if holder:
            login.cluster.slurm("scancel", holder.strip())
    assert done.returncode == 0, said
    assert "#SBATCH --gpus-per-node=h200:1" in script
    assert re.search(f"not estimated: the dry run in .*{told}", messages(said)), said
    assert not {"RUNNING", "PENDING"} & set(login.steps("JobState", name=ARRAY))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_array_ends_with_what_asked_for_it(login: Login, number: signal.Signals) -> None:
    login.python.write_text("#!/bin/sh\nsleep 600\n")
    login.configure(STEP)
    before = len(login.steps("JobId", name=ARRAY))
    words = [
        "generate",
        "--template",
        "sweep",
        "--grid",
        "width=1,2",
        "--",
        str(login.python),
        "train.py",
        "{width}",
    ]
    asking = login.covered(XMEM_SLURM, *words)
    wait_until(lambda: login.steps("JobState", name=ARRAY)[before:] == ["RUNNING", "RUNNING"])
    asking.send_signal(number)
    asking.communicate()
    assert asking.returncode == -number
    wait_until(lambda: "RUNNING" not in login.steps("JobState", name=ARRAY))
