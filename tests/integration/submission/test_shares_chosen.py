"""Shares on a real cluster: chosen, allocated by Slurm, and the job finds the limit that holds it
to its own."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TRAIN, WARM_XSBATCH, Cluster, running_lab, write_job
from xmem_slurm import resources
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

SITE_FILE = resources.tree("site-config") / "examples" / "mig-and-shares.toml"
SITE = load_site(SITE_FILE)
GPUS = option_gpus(SITE, load_catalogue())
LIMITS = (
    'import os\nprint(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), '
    'os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))'
)


class Lab:
    """A running lab of the example, and what its jobs said and got."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def submit(self, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            *WARM_XSBATCH, *argv, "job.sh", cwd=folder, XDG_STATE_HOME=str(folder / "state")
        )

    def finished(self, done: subprocess.CompletedProcess[str], folder: Path) -> tuple[str, str]:
        """Return what Slurm says of the job, with where its GPUs were, and what the job printed."""
        job = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert job, done.stderr
        return self.cluster.ended(job[1]), (folder / "out").read_text()


@pytest.fixture(scope="module")
def cut_up() -> Iterator[Lab]:
    with running_lab(SITE_FILE) as running:
        yield Lab(running)


@pytest.fixture
def folder(tmp_path: Path, warm_python: Path) -> Path:
    return write_job(tmp_path, warm_python, "--output=out", train=f"{TRAIN}\n{LIMITS}\n")


def mps_limit(units: int) -> str:
    return f"0={units * (GPUS['mps'].total_bytes // 100) >> 20}M"


def test_a_job_gets_its_part_of_a_gpu_by_mps(cut_up: Lab, folder: Path) -> None:
    done = cut_up.submit(folder, "--partition=small", "--gres=gpu:t4:1")
    shown, said = cut_up.finished(done, folder)
    assert "--gres=gpu:t4:1 -> --gres=mps:10 " in done.stderr, done.stderr
    assert "10 of 100 units of MPS of t4 have 1.4" in done.stderr
    assert "TresPerNode=gres:mps:10" in shown
    assert re.search(r"Nodes=t1 .*GRES=mps:10\(", shown), shown
    assert said.startswith(mps_limit(10)), said


@pytest.mark.parametrize("line", ["#XMEM whole", "#SBATCH --exclusive"])
def test_a_job_that_wants_no_part_of_a_gpu_gets_a_whole_one(
    cut_up: Lab, folder: Path, line: str
) -> None:
    script = (folder / "job.sh").read_text()
    (folder / "job.sh").write_text(script.replace("#SBATCH", f"{line}\n#SBATCH", 1))
    done = cut_up.submit(folder, "--hold", "--partition=small", "--gres=gpu:1")
    assert "--gres=gpu:1 -> --gres=gpu:t4:1 " in done.stderr, done.stderr


def test_a_job_that_overrules_its_limit_gets_a_gpu_that_is_its_own(
    cut_up: Lab, folder: Path
) -> None:
    """All the ways of doing so are in tests/integration/dryrun/test_dry_run.py."""
    script = (folder / "job.sh").read_text()
    export = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    (folder / "job.sh").write_text(script.replace("\n/", f"\n{export}\n/"))
    done = cut_up.submit(folder, "--hold", "--gres=gpu:h200:1")
    assert "--gres=gpu:h200:1 -> --gres=gpu:1g.18gb:1" in done.stderr, done.stderr
    why = "nothing would hold it to one: the job sets PYTORCH_CUDA_ALLOC_CONF itself"
    assert f"no share of a GPU for this job, as {why}" in done.stderr


def test_shards_that_a_user_asked_for_become_as_many_as_needed(cut_up: Lab, folder: Path) -> None:
    for asked in ("--gres=shard:20", "--gres=shard:1"):
        done = cut_up.submit(folder, asked)
        shown, said = cut_up.finished(done, folder)
        assert "TresPerNode=gres:shard:2\n" in shown, done.stderr
        assert re.search(r"Nodes=h1 .*GRES=shard:2\(", shown), shown
        assert "per_process_memory_fraction" in said
        assert "2 of 139 shards of h200 have 2.01 GiB" in done.stderr


def test_mps_that_a_user_asked_for_is_never_lowered(cut_up: Lab, folder: Path) -> None:
    done = cut_up.submit(folder, "--partition=small", "--gres=mps:50")
    shown, said = cut_up.finished(done, folder)
    assert "TresPerNode=gres:mps:50" in shown, done.stderr
    assert said.startswith(mps_limit(50)), said


def test_where_shares_are_not_to_be_had_a_request_for_one_stays(cut_up: Lab, folder: Path) -> None:
    done = cut_up.submit(folder, "--hold", "--partition=quiet", "--gres=shard:20")
    assert "submitted as written: the site file has no shard that" in done.stderr
    assert done.returncode == 0
