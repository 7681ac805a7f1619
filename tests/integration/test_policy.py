"""Which GPU of those that fit: by the queue as it is, asked of a real cluster."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

XSBATCH = str(Path(sys.executable).parent / "xsbatch")
TRAIN = """
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def busy(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Keep every L4 busy for an hour, by Slurm's reckoning."""
    jobs = [
        subprocess.run(
            ["sbatch", "--parsable", "--gres=gpu:l4:4", "--time=60", "--output=/dev/null", "--wrap=sleep 3600"],
            env=cluster.environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    yield cluster
    subprocess.run(["scancel", *jobs], env=cluster.environ, check=True)


def xsbatch(cluster: Cluster, folder: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = cluster.environ | {"XDG_STATE_HOME": str(folder / "state")} | environ
    return subprocess.run(
        [XSBATCH, "--xmem-dry-run", "--time=10", *argv, "job.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_job_can_go_where_it_starts_first(busy: Cluster, tmp_path: Path, job_python: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:h200:1\n{job_python} train.py\n")
    cheapest = xsbatch(busy, tmp_path)
    assert "#SBATCH --gres=gpu:l4:1" in cheapest.stdout, cheapest.stderr

    quiet = xsbatch(busy, tmp_path, "--xmem-policy=start", "--quiet")
    assert "#SBATCH --gres=gpu:a100_40:1" in quiet.stdout, quiet.stderr
    first = xsbatch(busy, tmp_path, "--xmem-policy=start")
    assert "#SBATCH --gres=gpu:a100_40:1" in first.stdout, first.stderr
    assert "of 4 options the first to start (" in first.stderr

    program = tmp_path / "sbatch"
    program.write_text('#!/bin/sh\n[ -z "$SLURM_TIME_FORMAT" ] || exit 1\nPATH=/usr/bin exec sbatch "$@"\n')
    program.chmod(0o755)
    silent = xsbatch(busy, tmp_path, XMEM_POLICY="start", XMEM_SBATCH=str(program))
    assert "#SBATCH --gres=gpu:l4:1" in silent.stdout, silent.stderr
    assert "Slurm did not say when each would start" in silent.stderr
