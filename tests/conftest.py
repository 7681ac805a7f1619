"""What tests share: the Python that a user's job would have, and a real cluster."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from xmem_slurm import lab, resources
from xmem_slurm.site.loading import load_site

EXAMPLE_SITE = resources.tree("site-config") / "example.toml"


def pytest_configure() -> None:
    """Give our children the signals as a shell gives them: whoever runs us in the background may ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, saying why, what this machine has not been set up for; `make test` sets it up."""
    python, slurm = os.environ.get("XMEM_TEST_PYTHON"), shutil.which("slurmctld")
    for item in items:
        if item.get_closest_marker("torch") and not python:
            item.add_marker(
                pytest.mark.skip(reason="XMEM_TEST_PYTHON does not name a Python with a CUDA build of torch")
            )
        if item.get_closest_marker("slurm") and not slurm:
            item.add_marker(pytest.mark.skip(reason="Slurm is not installed"))


@pytest.fixture(scope="session")
def job_python() -> Path:
    """Return the Python of a user's job: one that has a CUDA build of torch."""
    return Path(os.environ["XMEM_TEST_PYTHON"])


@dataclass(frozen=True)
class Cluster:
    """A running lab of the example site. `environ` is an environment whose Slurm commands talk to it."""

    folder: Path
    environ: dict[str, str]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Bring up a real Slurm cluster, shared by all tests of a run."""
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent, "lab")
        lab.up(load_site(EXAMPLE_SITE), folder)
        yield Cluster(folder, {**os.environ, **lab.environment(folder), "XMEM_SITE": str(EXAMPLE_SITE)})
        lab.down(folder)
