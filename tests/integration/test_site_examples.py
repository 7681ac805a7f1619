"""Every example site is a cluster that comes up, is as the file says, and gives out each of its options."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm import lab, resources
from xmem_slurm.site import dialect
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import Site

PATIENCE_SECONDS = 240
"""Ends a test that would hang; nothing is measured by it."""
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
    assert ran_on_each_option(site, os.environ | lab.environment(place)) == dict.fromkeys(site.option, "COMPLETED")


def ran_on_each_option(site: Site, environ: dict[str, str]) -> dict[str, str]:
    """Run a job on each option, as it is asked for there; return how each ended."""
    jobs = {}
    for name, option in site.option.items():
        partition = next(group.partitions[0] for group in site.nodes if name in group.gpus)
        words = ["--parsable", "--output=/dev/null", f"--partition={partition}", *dialect.words(option, site.dialect)]
        done = subprocess.run(
            ["sbatch", *words, "--wrap=true"], env=environ, capture_output=True, text=True, check=True, cwd="/"
        )
        jobs[name] = done.stdout.strip()
    ended = dict.fromkeys(jobs, "PENDING")
    until = time.monotonic() + PATIENCE_SECONDS
    while set(ended.values()) & {"PENDING", "RUNNING", "COMPLETING"}:
        assert time.monotonic() < until, ended
        time.sleep(0.2)
        for name, job in jobs.items():
            shown = subprocess.run(
                ["scontrol", "show", "job", job], env=environ, capture_output=True, text=True, check=True
            ).stdout
            ended[name] = shown.partition("JobState=")[2].split()[0]
    return ended
