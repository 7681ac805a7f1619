"""Every example site is a cluster that comes up, is as the file says, and gives out each of its
options."""

from pathlib import Path

import pytest

from tests.conftest import XMEM_SLURM, Cluster, running_lab
from xmem_slurm import resources
from xmem_slurm.rewriting import dialect
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import Site

EXAMPLES = sorted((resources.tree("site-config") / "examples").glob("*.toml"))


def test_there_is_one_for_each_common_style() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.slurm
@pytest.mark.slow(
    covers=["site-config/*", "xmem_slurm/site/*", "xmem_slurm/lab/*", "templates/lab/*"]
)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_cluster(example: Path) -> None:
    site = load_site(example)
    assert option_gpus(site, load_catalogue())
    with running_lab(example) as cluster:
        done = cluster.run(XMEM_SLURM, "site", "check")
        assert done.returncode == 0, done.stdout + done.stderr
        assert ran_on_each_option(site, cluster) == dict.fromkeys(site.option, "COMPLETED")


def ran_on_each_option(site: Site, cluster: Cluster) -> dict[str, str]:
    """Run a job on each option, as it is asked for there; return how each ended."""
    jobs = {}
    for name, option in site.option.items():
        partition = next(group.partitions[0] for group in site.nodes if name in group.gpus)
        words = [
            "--parsable",
            "--output=/dev/null",
            f"--partition={partition}",
            *dialect.words(option, site.dialect),
        ]
        jobs[name] = cluster.slurm("sbatch", "--chdir=/", *words, "--wrap=true").strip()
    return {
        name: cluster.ended(job).partition("JobState=")[2].split()[0] for name, job in jobs.items()
    }
