"""Shares on a real cluster: chosen, allocated by Slurm, and the job finds the limit that holds it to its own."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm import lab, resources
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

SITE_FILE = resources.tree("site-config") / "examples" / "mig-and-shares.toml"
SITE = load_site(SITE_FILE)
GPUS = option_gpus(SITE, load_catalogue())
XSBATCH = str(Path(sys.executable).parent / "xsbatch")
PATIENCE_SECONDS = 240
"""Ends a test that would hang; nothing is measured by it."""
TRAIN = """
import os, torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
"""


class Lab:
    """A running lab of the example, and what its jobs said and got."""

    def __init__(self, folder: Path) -> None:
        self.environ = {**os.environ, **lab.environment(folder), "XMEM_SITE": str(SITE_FILE)}

    def submit(self, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
        environ = self.environ | {"XDG_STATE_HOME": str(folder / "state")}
        return subprocess.run(
            [XSBATCH, *argv, "job.sh"], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )

    def finished(self, done: subprocess.CompletedProcess[str], folder: Path) -> tuple[str, str]:
        """Return what Slurm says of the job, with where its GPUs were, and what the job printed."""
        job = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert job, done.stderr
        shown, places, until = "", set[str](), time.monotonic() + PATIENCE_SECONDS
        while not re.search(r"JobState=(COMPLETED|FAILED)", shown):
            assert time.monotonic() < until, shown
            time.sleep(0.2)
            shown = subprocess.run(
                ["scontrol", "--details", "show", "job", job[1]],
                env=self.environ,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            places |= {line for line in shown.splitlines() if "GRES=" in line}
        return "\n".join([shown, *places]), (folder / "out").read_text()


@pytest.fixture(scope="module")
def cut_up() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        lab.up(SITE, Path(parent, "lab"))
        yield Lab(Path(parent, "lab"))
        lab.down(Path(parent, "lab"))


@pytest.fixture
def folder(tmp_path: Path, job_python: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --output=out\n{job_python} train.py\n")
    return tmp_path


def mps_limit(units: int) -> str:
    return f"0={units * (GPUS['mps'].total_bytes // 100) >> 20}M"


def test_a_job_gets_its_part_of_a_gpu_by_mps(cut_up: Lab, folder: Path) -> None:
    done = cut_up.submit(folder, "--partition=small", "--gres=gpu:t4:1")
    shown, said = cut_up.finished(done, folder)
    assert "--gres=gpu:t4:1 -> --gres=mps:10 " in done.stderr, done.stderr
    assert "10 of 100 units of MPS of t4 have 1.4" in done.stderr
    assert "TresPerNode=gres:mps:10" in shown
    assert re.search(r"Nodes=t1 .*GRES=mps:10\(IDX", shown), shown
    assert said.startswith(mps_limit(10)), said


@pytest.mark.parametrize("line", ["#XMEM whole", "#SBATCH --exclusive"])
def test_a_job_that_wants_no_part_of_a_gpu_gets_a_whole_one(cut_up: Lab, folder: Path, line: str) -> None:
    script = (folder / "job.sh").read_text()
    (folder / "job.sh").write_text(script.replace("#SBATCH", f"{line}\n#SBATCH", 1))
    done = cut_up.submit(folder, "--hold", "--partition=small", "--gres=gpu:1")
    assert "--gres=gpu:1 -> --gres=gpu:t4:1 " in done.stderr, done.stderr


def test_shards_that_a_user_asked_for_become_as_many_as_needed(cut_up: Lab, folder: Path) -> None:
    for asked in ("--gres=shard:20", "--gres=shard:1"):
        done = cut_up.submit(folder, asked)
        shown, said = cut_up.finished(done, folder)
        assert "TresPerNode=gres:shard:2\n" in shown, done.stderr
        assert re.search(r"Nodes=h1 .*GRES=shard:2\(IDX", shown), shown
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
