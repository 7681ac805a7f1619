"""What is discovered of a cluster is that cluster: a lab of the site file that was found is found
to be the same."""

import tomllib
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.cluster.test_site_discovery import takes_all
from xmem_slurm.cluster import comparison, discovery, live
from xmem_slurm.lab import settings
from xmem_slurm.site.consistency import problems
from xmem_slurm.site.loading import load_catalogue, load_site, unknown_gpus
from xmem_slurm.site.schema import Site
from xmem_slurm.slurm import hostlist

CATALOGUE = load_catalogue()
EXAMPLES = [EXAMPLE_SITE, *sorted((EXAMPLE_SITE.parent / "examples").glob("*.toml"))]


def lab_of(site: Site) -> live.Cluster:
    """Return what scontrol would say of the lab of a site."""
    nodes = [
        f"NodeName={node.name} CPUTot={node.cpus} "
        f"AvailableFeatures={','.join(node.features) or '(null)'}"
        f" Gres={node.gres or '(null)'} RealMemory={node.memory_mib} "
        f"Partitions={','.join(group.partitions)}"
        for group in site.nodes
        for node in (settings._node(site, group, name, {}) for name in hostlist.expand(group.names))
    ]
    partitions = [
        f"PartitionName={name} Default={'YES' if each.default else 'NO'} MaxTime={each.max_time}"
        for name, each in site.partition.items()
    ]
    return live.parse(f"ClusterName = {site.name}\n", "\n".join(nodes), "\n".join(partitions))


def discovered(cluster: live.Cluster) -> tuple[Site, str]:
    text = discovery.write(cluster, CATALOGUE, ",".join, takes_all)
    return Site.model_validate(tomllib.loads(text)), text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_discover_check_lab_and_discover_again_is_the_same(example: Path) -> None:
    cluster = lab_of(load_site(example))
    found, text = discovered(cluster)
    assert [
        *problems(found),
        *unknown_gpus(found, CATALOGUE),
        *comparison.differences(found, cluster),
    ] == []
    assert lab_of(found) == cluster
    assert discovered(lab_of(found))[1] == text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_discovered_offers_what_the_example_does(example: Path) -> None:
    """Of a model that the cluster does not tell, the one with the least memory stands there, and a
    question."""
    site = load_site(example)
    found, _ = discovered(lab_of(site))

    def offered(site: Site) -> list[tuple[str, str, int]]:
        options = [
            (o.type or "", o.share.kind if o.share else "", o.gpu) for o in site.option.values()
        ]
        return sorted((kind, share, CATALOGUE[gpu].total_bytes) for kind, share, gpu in options)

    for ours, theirs in zip(offered(found), offered(site), strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] <= theirs[2]


def test_two_memories_of_one_type_are_told_apart_by_the_feature_that_only_one_has() -> None:
    found, text = discovered(
        lab_of(load_site(EXAMPLE_SITE.parent / "examples" / "one-type-two-memories.toml"))
    )
    told = {
        name: (option.gpu[:4], option.constraint, option.both)
        for name, option in found.option.items()
    }
    assert told == {"a100": ("a100", "hbm40g", True), "a100-80gb": ("a100", "hbm80g", True)}
    assert text.count("instead?") == 2
