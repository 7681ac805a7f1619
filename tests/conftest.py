"""What tests share: the Python that a user's job would have, and a real cluster."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import rotation, unsandboxed, warm
from tests.harness.told import messages
from xmem_slurm import lab, resources
from xmem_slurm.sandbox import sandbox
from xmem_slurm.site.loading import load_site
from xmem_slurm.state import own_files

EXAMPLE_SITE = resources.tree("site-config") / "example.toml"
XSBATCH = str(Path(sys.executable).parent / "xsbatch")
XMEM_SLURM = str(Path(sys.executable).parent / "xmem-slurm")
UNSANDBOXED = (
    sys.executable,
    "-I",
    str(Path(unsandboxed.__file__).with_name("unsandboxed_start.py")),
)
"""Before the name of a module: its `main`, with dry runs that a warm Python can be in."""
WARM_XSBATCH = (*UNSANDBOXED, "xmem_slurm.cli.xsbatch")
PATIENCE_SECONDS = 240
"""Ends a test that would hang; nothing is measured by it."""
TRAIN = """
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""A training script that fits the smallest GPU there is: it needs less than 2 GiB."""
USES = 'import torch\ntorch.zeros(1 << 20, device="cuda")\n'
"""A script that uses a GPU. It makes no optimizer, for which torch imports half as much again."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test` gives."""
    parser.addoption(
        "--rotate",
        action="store_true",
        help="leave out slow tests, but for those of this day and change",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give our children the signals as a shell gives them, which who runs us in the background may
    ignore; and a line.

    Dry runs stand in line where they could ask the same cluster (`dryrun.admission`), those of
    other workers, too."""
    if config.getoption("rotate"):
        config.pluginmanager.register(rotation.Rotation(), "rotation")
    # a line of its own for its dry runs, a worker's, too
    os.environ["SLURM_CONF"] = f"/tmp/no-cluster-{os.getpid()}"
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, saying why, what this machine has not been set up for; `make test` sets it up."""
    python, slurm = os.environ.get("XMEM_TEST_PYTHON"), shutil.which("slurmctld")
    for item in items:
        if item.get_closest_marker("torch") and not python:
            item.add_marker(
                pytest.mark.skip(
                    reason="XMEM_TEST_PYTHON does not name a Python with a CUDA build of torch"
                )
            )
        if item.get_closest_marker("slurm") and not slurm:
            item.add_marker(pytest.mark.skip(reason="Slurm is not installed"))


@pytest.fixture(scope="session")
def job_python() -> Path:
    """Return the Python of a user's job: one that has a CUDA build of torch."""
    return Path(os.environ["XMEM_TEST_PYTHON"])


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """Return the same with accelerate, DeepSpeed, Lightning and other trainers."""
    if "XMEM_TEST_TRAINERS" not in os.environ:
        pytest.skip(
            "XMEM_TEST_TRAINERS names no Python with accelerate, DeepSpeed, Lightning and other "
            "trainers"
        )
    return Path(os.environ["XMEM_TEST_TRAINERS"])


@pytest.fixture(scope="session")
def warm_python(job_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what behaves as that Python, and has torch at hand: for tests that are not of how a
    Python starts.

    What has it at hand is one for all workers.
    """
    ours = tmp_path_factory.getbasetemp()
    of_all, owner = (
        (ours.parent, os.getppid()) if "PYTEST_XDIST_WORKER" in os.environ else (ours, os.getpid())
    )
    return warm.installed(job_python, ours / "warm", of_all / "warm-servers", owner)


@pytest.fixture
def without_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dry runs of this test be no more than processes, as a warm Python has to be."""
    monkeypatch.setattr(sandbox, "run", unsandboxed.run)


@dataclass(frozen=True)
class Cluster:
    """A running lab. `environ` is an environment whose Slurm commands talk to it."""

    folder: Path
    environ: dict[str, str]

    def run(
        self, *command: str, cwd: Path | None = None, stdin: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there, with these variables, too; what it told has a message a line."""
        environment = self.environ | environ
        done = subprocess.run(
            command, cwd=cwd, env=environment, input=stdin, capture_output=True, encoding="utf-8",
            errors="surrogateescape", check=False
        )  # fmt: skip
        done.stderr = messages(done.stderr)
        return done

    def slurm(self, *command: str) -> str:
        """Return what a command of Slurm's that has to succeed prints."""
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return as_of_22_05(done.stdout)

    def show(self, job: str) -> str:
        """Return what Slurm says of a job."""
        return self.slurm("scontrol", "--details", "show", "job", job)

    def ended(self, job: str) -> str:
        """Wait for a job's end; return what Slurm says of it then, with where its GPUs were
        before."""
        shown, places = "", set[str]()

        def has_ended() -> bool:
            nonlocal shown
            shown = self.show(job)
            places.update(line for line in shown.splitlines() if "GRES=" in line)
            return not {"PENDING", "RUNNING", "COMPLETING"} & {
                shown.partition("JobState=")[2].split()[0]
            }

        wait_until(has_ended)
        return "\n".join([shown, *places])


def as_of_22_05(shown: str) -> str:
    """Spell the GPUs that scontrol shows of a job as 22.05 does, gres:gpu:l4:1; newer ones print
    gres/gpu:l4=1."""
    return re.sub(
        r"(?<=TresPer)(Node|Job|Task)=(\S+)", lambda found: f"{found[1]}={_colons(found[2])}", shown
    )


def _colons(tres: str) -> str:
    return tres.replace("gres/", "gres:").replace("=", ":")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes by itself; in vain only where the machine had the time for it,
    too.

    What waits for others to leave it a CPU (dry runs are nice to all) is late, not absent.
    """
    since, idle_since = time.monotonic(), _idle_seconds()
    while not condition():
        waited, idle = time.monotonic() - since, _idle_seconds() - idle_since
        assert min(waited, idle) < PATIENCE_SECONDS, (
            f"waited {waited:.0f} s, {idle:.0f} CPU s of them idle"
        )
        time.sleep(0.1)


def _idle_seconds() -> float:
    """Return the CPU seconds in which nobody wanted to run, of all CPUs together (proc_stat(5))."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    return int(first.split()[4]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_lab(
    site_file: Path, hooks: Mapping[str, str] | None = None, *, accounting: bool = False
) -> Iterator[Cluster]:
    """Bring up a real Slurm cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent, "lab")
        lab.up(load_site(site_file), folder, accounting=accounting, hooks=hooks)
        yield Cluster(
            folder, {**os.environ, **lab.environment(folder), "XMEM_SITE": str(site_file)}
        )
        lab.down(folder)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Bring up a real Slurm cluster of the example site, shared by all tests of a run."""
    with running_lab(EXAMPLE_SITE) as running:
        yield running


@pytest.fixture(scope="session")
def accounts() -> Iterator[Cluster]:
    """Bring up one that keeps accounts, for what asks sacct."""
    with running_lab(EXAMPLE_SITE, accounting=True) as running:
        yield running


def own_cache(folder: Path) -> dict[str, str]:
    """Return the variable for a cache of its own in a folder, with the stand-ins that earlier tests
    built."""
    built = own_files.cache_folder("device")
    own = folder / "cache" / "xmem-slurm" / "device"
    if built.is_dir():
        shutil.copytree(built, own, ignore=shutil.ignore_patterns("making", ".*"))
    return {"XDG_CACHE_HOME": str(folder / "cache")}


def write_job(folder: Path, python: str | Path, *directives: str, train: str = TRAIN) -> Path:
    """Write `train.py`, and `job.sh` that runs it, into a folder; return that."""
    (folder / "train.py").write_text(train)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {directive}" for directive in directives),
        f"{python} train.py",
    ]
    (folder / "job.sh").write_text("\n".join([*lines, ""]))
    return folder
