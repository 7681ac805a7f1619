"""A site whose job_submit refuses every spelling but its own: jobs that nobody could submit there before are taken."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm import lab, resources
from xmem_slurm.site.loading import load_site

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

SITE_FILE = resources.tree("site-config") / "examples" / "dialect-of-its-own.toml"
XSBATCH = str(Path(sys.executable).parent / "xsbatch")
PICKY = """
function slurm_job_submit(job, partitions, user)
  local asked = job.tres_per_node or ""
  if job.tres_per_job or job.tres_per_task or job.tres_per_socket or asked:find("gpu:%a") then
    slurm.log_user("here GPUs are asked for as --gres=gpu:N,VramPerGpu:SIZE")
    return slurm.ERROR
  end
  if asked:find("gpu") and (not asked:find("VramPerGpu") or job.pn_min_memory == slurm.NO_VAL64) then
    slurm.log_user("say VramPerGpu and --mem, too")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""
TRAIN = """
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        lab.up(load_site(SITE_FILE), Path(parent, "lab"), hooks={"job_submit.lua": PICKY})
        site_file = Path(parent, "site.toml")
        site_file.write_text(SITE_FILE.read_text().replace("[dialect]", 'templates = "ours"\n\n[dialect]', 1))
        Path(parent, "ours").mkdir()
        Path(parent, "ours", "batch.sh.j2").write_text("{{ head }}# {{ record }}\nmodule load gpu\n{{ body -}}\n")
        yield {**os.environ, **lab.environment(Path(parent, "lab")), "XMEM_SITE": str(site_file)}
        lab.down(Path(parent, "lab"))


@pytest.fixture
def folder(tmp_path: Path, job_python: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --output=/dev/null\n{job_python} train.py\n")
    return tmp_path


def submit(program: str, folder: Path, environ: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    environ = environ | {"XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [program, "--hold", *argv], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("argv", "memory"),
    [
        (("--gpus=1",), "32000M"),
        (("--gpus-per-node=1", "--mem=8G"), "8G"),
        (("--ntasks=1", "--gpus-per-task=1"), "32000M"),
        (("--gres=gpu:1,VramPerGpu:80G",), "32000M"),
    ],
)
def test_every_spelling_becomes_the_sites_own(
    environ: dict[str, str], folder: Path, argv: tuple[str, ...], memory: str
) -> None:
    plain = submit("sbatch", folder, environ, *argv, "job.sh")
    assert plain.returncode == 1, "the site would not have taken it"

    done = submit(XSBATCH, folder, environ, *argv, "job.sh")
    assert done.returncode == 0, done.stderr
    job = re.search(r"\d+", done.stdout)
    assert job
    shown = subprocess.run(
        ["scontrol", "show", "job", job[0]], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"TresPerNode=(\S*)", shown)[1] == "gres:gpu:1,gres:VramPerGpu:24G"  # type: ignore[index]
    assert re.search(r"MinMemoryNode=(\S*)", shown)[1] == memory  # type: ignore[index]
    assert "TresPerJob" not in shown
    assert "VramPerGpu:24G" in done.stderr


def test_the_sites_own_template_is_what_slurm_gets(environ: dict[str, str], folder: Path) -> None:
    (folder / "job.sh").write_text((folder / "job.sh").read_text().replace("#SBATCH", "#SBATCH --gpus=1\n#SBATCH", 1))
    done = submit(XSBATCH, folder, environ, "job.sh")
    assert done.returncode == 0, done.stderr
    written = subprocess.run(
        ["scontrol", "write", "batch_script", done.stdout.split()[-1], "-"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "#SBATCH --gpus" not in written
    assert "\nmodule load gpu\n" in written
