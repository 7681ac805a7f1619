"""Job steps that ask for GPUs themselves, on a real cluster: they run in the job whose type was
changed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, Cluster
from tests.harness.told import messages

pytestmark = pytest.mark.slurm

FORCED = [sys.executable, str(Path(__file__).parents[2] / "contract" / "forced_xsbatch.py"), "l4"]
ECHO = "sh -c 'echo ran:$CUDA_VISIBLE_DEVICES'"


def run(cluster: Cluster, folder: Path, *argv: str) -> tuple[str, str]:
    """Submit with l4 as the answer, and wait; return what the job printed, and what xsbatch
    said."""
    done = subprocess.run(
        [*FORCED, "--wait", "--output=out", *argv],
        cwd=folder,
        env=cluster.environ | {"XMEM_SITE": str(EXAMPLE_SITE), "XDG_STATE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return (folder / "out").read_text(), messages(done.stderr)


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ("--gres=gpu:h200:1", "srun --gres=gpu:h200:1"),
        ("--gpus=h200:1", "srun --gres gpu:1"),
        ("--gres=gpu:h200:1 -n1", "exec srun --gpus-per-task='h200:1' --ntasks=1"),
        ("--gpus-per-node=1", "time srun -lG1"),
    ],
)
def test_a_step_runs_in_the_job_whose_type_was_changed(
    options: str, step: str, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH {options}\n{step} {ECHO}\n")
    printed, said = run(cluster, tmp_path, "job.sh")
    assert "ran:0" in printed, (printed, said)
    assert "srun --g" in said
    assert "l4" in said


def test_a_wrapped_step_runs(cluster: Cluster, tmp_path: Path) -> None:
    printed, said = run(
        cluster, tmp_path, "--gres=gpu:h200:1", f"--wrap=srun --gres=gpu:h200:1 {ECHO}"
    )
    assert printed == "ran:0\n", said
    assert "srun --gres=gpu:h200:1 -> --gres=gpu:l4:1" in said


def test_slurm_refuses_a_step_of_another_type(cluster: Cluster, tmp_path: Path) -> None:
    """What the job would run into if only the job were changed; so a step that cannot be changed is
    in the way."""
    steps = f"eval srun --gres=gpu:h200:1 {ECHO}\n"
    (tmp_path / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH --gres=gpu:h200:1\nX=--gres=gpu:h200:1\nsrun $X {ECHO}\n"
    )
    printed, said = run(cluster, tmp_path, "job.sh")
    assert "line 4 of the script: srun $X asks for a GPU itself" in said
    assert printed == "ran:0\n"
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:l4:1\n{steps}")
    printed, _ = run(cluster, tmp_path, "--xmem-off", "job.sh")
    assert re.search("not found in the job|Invalid generic resource", printed)  # 22.05; 24.11
