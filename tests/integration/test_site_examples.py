"""Every example site is a cluster that comes up, is as the file says, and gives out each of its options."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm import lab, resources
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus

EXAMPLES = sorted((resources.tree("site-config") / "examples").glob("*.toml"))


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        yield Path(parent, "lab")
        lab.down(Path(parent, "lab"))


def test_there_is_one_for_each_common_style() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.slurm
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_cluster(place: Path, example: Path) -> None:
    site = load_site(example)
    assert option_gpus(site, load_catalogue())
    lab.up(site, place)
    done = subprocess.run(
        [Path(sys.executable).parent / "xmem-slurm", "site", "check", "--site", example],
        env=os.environ | lab.environment(place),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
