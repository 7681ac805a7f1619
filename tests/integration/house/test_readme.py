"""Every command that the README tells a user to type works as it stands there, on a real
cluster."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cluster
from tests.harness.rotation import some_each_time

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line[2:].partition("  #")[0].strip()
    for block in BLOCKS
    for line in block.splitlines()
    if line[:2] == "$ "
]


ADVICE = pytest.mark.slow(
    covers=["README.md", "examples/gpt2/*", "xmem_slurm/probe/*advice*", "xmem_slurm/sizing/*", "xmem_slurm/cli/*",
            "xmem_slurm/dryrun/*", "xmem_slurm/report/*"],
)  # fmt: skip
"""Four dry runs in one; tests/integration/dryrun/test_advice.py has others, each time."""


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.parametrize(
    "command",
    some_each_time(COMMANDS, [each for each in COMMANDS if "--advice" not in each], ADVICE),
)
def test_a_command_of_the_readme(
    cluster: Cluster, job_python: Path, tmp_path: Path, command: str
) -> None:
    ours, job = Path(sys.executable).parent, job_python.parent
    environ = cluster.environ | {
        "PATH": os.pathsep.join([str(job), str(ours), cluster.environ["PATH"]]),
        "XDG_STATE_HOME": str(tmp_path),
        "XMEM_LAB": str(cluster.folder),
        "SBATCH_OUTPUT": os.devnull,
    }
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "submitted as written" not in done.stderr
    assert done.stdout


@pytest.mark.parametrize("target", ["demo", "test", "lint", "capture"])
def test_make_targets_exist(target: str) -> None:
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
