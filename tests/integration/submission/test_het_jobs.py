"""Heterogeneous jobs on a real cluster: each component is sized by what its own steps do, and then
runs."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, UNSANDBOXED, WARM_XSBATCH, Cluster, as_of_22_05
from tests.harness.told import messages

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys, torch
width = int(sys.argv[1])
model = torch.nn.Linear(width, width, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(64, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"], width, torch.cuda.get_device_name(), flush=True)
"""
LOOK = "import torch; print('GPUs:', torch.cuda.device_count())"
SMALL, LARGE = 1024, 40_000
"""Widths: a GPU of 24 GB is enough for the first, not for the second (30 GiB)."""


class Place:
    """A folder with a training script, and a cluster to submit to."""

    def __init__(self, folder: Path, environ: dict[str, str], python: Path) -> None:
        self.folder = folder
        self._environ = environ | {"PATH": os.pathsep.join([str(python.parent), environ["PATH"]])}
        (folder / "train.py").write_text(TRAIN)
        (folder / "look.py").write_text(LOOK)

    def write(self, script: str) -> None:
        (self.folder / "job.sh").write_text(f"#!/bin/bash\n{script}")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        done.stderr = messages(done.stderr)
        return done

    def gpus(self, done: subprocess.CompletedProcess[str]) -> list[str | None]:
        """Return what each component of the submitted job asks for."""
        job = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
        assert job, (done.stdout, done.stderr)
        command = ["scontrol", "-o", "show", "job", job[1]]
        shown = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, check=True
        ).stdout
        lines = as_of_22_05(shown).splitlines()
        found = [re.search(r"TresPer(?:Node|Job|Task)=(\S+)", line) for line in lines if line]
        return [each[1] if each else None for each in found]


@pytest.fixture
def place(tmp_path: Path, warm_python: Path) -> Place:
    environ = {**os.environ, "XMEM_SITE": str(EXAMPLE_SITE)}
    return Place(tmp_path, environ, warm_python)


@pytest.fixture
def on_cluster(tmp_path: Path, warm_python: Path, cluster: Cluster) -> Place:
    tmp_path.parent.chmod(0o755)
    return Place(
        tmp_path, cluster.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}, warm_python
    )


def submit(place: Place, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    place.write(script)
    return place.run(*WARM_XSBATCH, "--xmem-budget=400", "-t5", "--output=out", *options, "job.sh")


WITH_A_CPU_COMPONENT = """\
#SBATCH --partition=cpu
#SBATCH hetjob
#SBATCH --gres=gpu:h200:1
"""
WITH_TWO_GPUS = """\
#SBATCH --gres=gpu:h200:1
#SBATCH hetjob
#SBATCH --gpus=h200:1
"""


@pytest.mark.slurm
def test_a_component_with_a_gpu_and_one_without(on_cluster: Place) -> None:
    """The batch script runs where there is no GPU; the step in the other component is what is
    sized, and runs there."""
    steps = "python look.py\nsrun --het-group=0 python look.py\nsrun --het-group=1 python train.py"
    done = submit(on_cluster, f"{WITH_A_CPU_COMPONENT}{steps} {SMALL}\n", "--wait")
    assert on_cluster.gpus(done) == [None, "gres:gpu:l4:1"], done.stderr
    assert done.returncode == 0, (on_cluster.folder / "out").read_text()
    said = (on_cluster.folder / "out").read_text().splitlines()
    assert said[-1] == f"0 1 {SMALL} NVIDIA L4"
    assert all(line.startswith("xsbatch: component 1: ") for line in done.stderr.splitlines())
    assert "component 1: --gres=gpu:h200:1 -> --gres=gpu:l4:1 (line 4 of the script)" in done.stderr


@pytest.mark.slurm
def test_two_components_get_different_gpus(on_cluster: Place) -> None:
    """One srun starts both: the ranks of the second component follow those of the first."""
    done = submit(
        on_cluster,
        f"{WITH_TWO_GPUS}srun python train.py {LARGE} : python train.py {SMALL}\n",
        "--wait",
    )
    assert on_cluster.gpus(done) == ["gres:gpu:a100_40:1", "gres:gpu:l4:1"], done.stderr
    assert done.returncode == 0, (on_cluster.folder / "out").read_text()
    assert sorted((on_cluster.folder / "out").read_text().splitlines()) == [
        f"0 2 {LARGE} NVIDIA A100-SXM4-40GB",
        f"1 2 {SMALL} NVIDIA L4",
    ]


@pytest.mark.slurm
def test_a_component_whose_processes_are_not_seen_stays_as_it_is(on_cluster: Place) -> None:
    done = submit(on_cluster, f"{WITH_TWO_GPUS}python train.py {SMALL}\n", "--hold")
    assert on_cluster.gpus(done) == ["gres:gpu:l4:1", "gres:gpu:h200:1"]
    assert done.stderr.splitlines()[-1] == (
        "xsbatch: component 1: stays as written: no process of its own used GPU memory in the dry "
        "run"
    )


def test_estimate_has_an_object_for_each_component(place: Place) -> None:
    place.write(f"{WITH_TWO_GPUS}srun --het-group=0,1 python train.py {SMALL}\n")
    done = place.run(
        *UNSANDBOXED,
        "xmem_slurm.cli.main",
        "estimate",
        "--json",
        "--gpu=l4",
        "--budget=400",
        "--html=page.html",
        "job.sh",
    )
    components = json.loads(done.stdout)["components"]
    found = {each["component"]: each["estimate"] for each in components}
    assert {
        number: (each["choice"], each["gpu"]) for number, each in found.items()
    } == dict.fromkeys((0, 1), ("l4", "l4"))
    assert len({each["required_bytes"] for each in found.values()}) == 1
    assert all((place.folder / f"component-{index}-page.html").is_file() for index in range(2))
