"""Two tenants of one sharded GPU on a real cluster: the one that asked for too little fails, its
neighbour does not."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_until
from xmem_slurm import lab, resources
from xmem_slurm.rewriting import sharing
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

SITE = load_site(resources.tree("site-config") / "examples" / "teaching-lab.toml")
GPU = option_gpus(SITE, load_catalogue())["rtx4090-shard"]

TENANT = """
import os, torch
held = torch.empty({mib} << 20, dtype=torch.uint8, device="cuda")
print("has its memory", flush=True)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        lab.up(SITE, Path(parent, "lab"))
        yield Path(parent, "lab")
        lab.down(Path(parent, "lab"))


def test_a_wrong_estimate_hurts_its_own_job_only(
    folder: Path, tmp_path: Path, job_python: Path
) -> None:
    environ = os.environ | lab.environment(folder)
    outputs = {}
    for name, units in (("short", 2), ("right", 6)):
        granted = sharing.grant(SITE.option["rtx4090-shard"], GPU, units, {})
        (tmp_path / f"{name}.py").write_text(TENANT.format(mib=3000))
        outputs[name] = tmp_path / f"{name}.out"
        command = f"{job_python} {name}.py; echo ended with $? on $SLURMD_NODENAME"
        done = subprocess.run(
            [
                "sbatch",
                "-p",
                "class",
                f"--gres={granted.entry}",
                f"--output={outputs[name]}",
                "--wrap",
                command,
            ],
            env=environ | dict(granted.variables),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    wait_until(
        lambda: all(
            path.is_file() and "ended with" in path.read_text() for path in outputs.values()
        )
    )
    short, right = outputs["short"].read_text(), outputs["right"].read_text()
    assert "OutOfMemoryError" in short
    assert "has its memory" not in short
    assert "has its memory" in right
    assert right.endswith("ended with 0 on ws1\n")
