"""Discovery: what Slurm prints, read and written as a site file; where it does not say enough, a
question."""

import tomllib
from collections.abc import Callable

import pytest

from xmem_slurm.cluster import comparison, discovery, guess, live
from xmem_slurm.cluster.spellings import OPTIONS, Accepted, GpuKind, find
from xmem_slurm.site.loading import load_catalogue, option_gpus
from xmem_slurm.site.schema import Site

CATALOGUE = load_catalogue()
CONFIG = "Configuration data as of 2026-11-21\nClusterName             = prod\n"
NODES = """\
NodeName=g1 Arch=x86_64 CPUTot=64 AvailableFeatures=a100,ib ActiveFeatures=a100,ib Gres=gpu:a100:4(S:0-1) \
OS=Linux 5.14 #1 SMP RealMemory=512000 State=IDLE Partitions=gpu,long Reason=Gres=gpu:evil:9 RealMemory=1
NodeName=g2 CPUTot=64 AvailableFeatures=a100,ib Gres=gpu:a100:4(S:0-1) RealMemory=512000 Partitions=gpu,long
NodeName=u1 CPUTot=16 AvailableFeatures=V100-SXM2-32GB Gres=gpu:2,shard:16 RealMemory=64000 Partitions=gpu
NodeName=x1 CPUTot=16 AvailableFeatures=(null) Gres=gpu:frontier_x:2 RealMemory=64000 Partitions=gpu
NodeName=c1 CPUTot=16 AvailableFeatures=(null) Gres=(null) RealMemory=64000 Partitions=long
NodeName=off CPUTot=1 Gres=gpu:2 RealMemory=1
"""
PARTITIONS = """\
PartitionName=gpu AllowGroups=ALL Default=YES MaxTime=2-00:00:00 Nodes=g1
PartitionName=long Default=NO MaxTime=UNLIMITED
"""
CLUSTER = live.parse(CONFIG, NODES, PARTITIONS)


def takes_all(_kind: GpuKind, _partition: str) -> Accepted:
    return Accepted()


def discovered(
    cluster: live.Cluster = CLUSTER, ask: Callable[[GpuKind, str], Accepted] = takes_all
) -> tuple[Site, str]:
    text = discovery.write(cluster, CATALOGUE, ",".join, ask)
    return Site.model_validate(tomllib.loads(text)), text


def test_nodes_alike_are_one_group_and_free_text_is_not_read() -> None:
    site, _ = discovered()
    groups = {group.names: group for group in site.nodes}
    assert set(groups) == {"g1,g2", "u1", "x1", "c1"}, "a node in no partition takes no jobs"
    assert groups["g1,g2"].gpus == {"a100": 4}
    assert (groups["g1,g2"].cpus, groups["g1,g2"].memory_mib) == (64, 512000)
    assert groups["g1,g2"].partitions == ("gpu", "long")
    assert site.partition["gpu"].default
    assert site.partition["gpu"].max_time == "2-00:00:00"


def test_untyped_gpus_are_asked_for_by_the_feature_that_names_them() -> None:
    site, _ = discovered()
    option = site.option["V100-SXM2-32GB"]
    assert (option.gpu, option.type, option.constraint) == (
        "v100-sxm2-32gb",
        None,
        "V100-SXM2-32GB",
    )
    share = site.option["shard-V100-SXM2-32GB"].share
    assert share is not None
    assert (share.kind, share.of, share.per_gpu) == ("shard", "V100-SXM2-32GB", 8)


def test_what_is_not_known_is_asked() -> None:
    site, text = discovered()
    asked = [line for line in text.splitlines() if line.startswith("# QUESTION")]
    assert any("which GPU is gpu:frontier_x:2 of node x1" in line for line in asked)
    assert any("is it a100-" in line for line in asked)
    assert any("what do they cost" in line for line in asked)
    assert option_gpus(site, CATALOGUE)["a100"].total_bytes < 43 * 10**9, "the smaller one is safe"


@pytest.mark.parametrize(
    ("kind", "features", "first"),
    [
        ("a100", (), "a100-pcie-40gb"),
        ("nvidia_a100-sxm4-80gb", (), "a100-sxm4-80gb"),
        ("a100_80", ("gpu_mem_40g",), "a100-pcie-80gb"),
        ("a100", ("gpu_mem_80g", "sxm4"), "a100-sxm4-80gb"),
        ("a100_1g.5gb", (), "a100-pcie-40gb.1g.5gb"),
        ("1g.18gb", (), "h200.1g.18gb"),
        ("l40s", (), "l40s"),
        ("l40", (), "l40"),
        ("gh200", (), "gh200-96gb"),
        ("rtx2080ti", (), "rtx-2080-ti"),
        ("2080ti", (), "rtx-2080-ti"),
        ("a10", (), "a10"),
        (None, ("GPU_SKU:V100_SXM2", "GPU_MEM:32GB"), "v100-sxm2-32gb"),
    ],
)
def test_types_and_features_name_a_gpu(
    kind: str | None, features: tuple[str, ...], first: str
) -> None:
    found = guess.candidates(kind, features, CATALOGUE)
    assert found[0].replace("sxm4", "pcie") == first.replace("sxm4", "pcie")
    if "sxm" in first:
        assert found == [first]


@pytest.mark.parametrize("kind", ["gpu", "frontier_x", "mi250", ""])
def test_what_is_no_gpu_of_the_catalogue_is_not_guessed(kind: str) -> None:
    assert guess.candidates(kind, ("ib", "avx512"), CATALOGUE) == []


def test_a_discovered_site_is_as_the_cluster_is_and_each_change_is_told() -> None:
    site, text = discovered()
    unknown = ["node x1: has 2 of gpu:frontier_x, the file says 0"]
    assert comparison.differences(site, CLUSTER) == unknown
    changed = (
        text.replace('"a100" = 4', '"a100" = 3')
        .replace('"ib"]', '"ib", "nvlink"]')
        .replace("UNLIMITED", "1:00")
    )
    told = comparison.differences(Site.model_validate(tomllib.loads(changed)), CLUSTER)
    assert "node g1: has 4 of gpu:a100, the file says 3" in told
    assert "node g2: lacks the features nvlink" in told
    assert "partition long: max_time is UNLIMITED on the cluster" in told


def taken_by(refuses: Callable[[str], bool]) -> Callable[[GpuKind, str], Accepted]:
    """Stand for a cluster that refuses some requests, each written as one line."""
    return lambda kind, _: find(
        kind, lambda words: "no such thing here" if refuses(" ".join(words)) else None
    )


@pytest.mark.parametrize(
    ("refuses", "taken"),
    [
        (lambda _: False, Accepted(OPTIONS)),
        (lambda line: "--gpus" not in line, Accepted(OPTIONS[1:])),
        (lambda line: "a100:1" in line, Accepted(OPTIONS, "constraint")),
        (lambda line: "--mem-per-cpu" not in line, Accepted(OPTIONS, "type", "mem-per-cpu")),
        (
            lambda line: "--gres" not in line or "--mem=" not in line,
            Accepted(OPTIONS[:1], "type", "mem"),
        ),
        (lambda _: True, Accepted(())),
    ],
)
def test_the_spellings_that_are_taken_are_found(
    refuses: Callable[[str], bool], taken: Accepted
) -> None:
    found = taken_by(refuses)(GpuKind("a100", "a100", None), "gpu")
    assert (found.options, found.by, found.memory) == (
        [*taken.options] or (),
        taken.by,
        taken.memory,
    )
    assert set(found.refused) == set(OPTIONS) - set(taken.options)


def test_a_dialect_is_written_as_it_was_found_and_asked_after() -> None:
    site, text = discovered(
        ask=taken_by(lambda line: "--gpus" in line or "--mem=" not in line or "a100:" in line)
    )
    assert (site.dialect.options, site.dialect.select) == (("gres",), "constraint")
    assert (site.dialect.host_memory_option, site.dialect.host_memory_mib) == ("mem", 32000)
    assert site.option["a100"].constraint == "a100"
    assert "# --gpus-per-node was refused: no such thing here" in text
    assert "# QUESTION: how much host memory" in text

    _, text = discovered(CLUSTER._replace(job_submit="lua"))
    assert "slurmctld has jobs go through plugins (lua)" in text
    site, text = discovered(ask=taken_by(lambda _: True))
    assert site.dialect == site.dialect.__class__()
    assert text.count("how is a GPU asked for here?") == len(OPTIONS)


def test_gpus_that_only_a_resource_tells_apart() -> None:
    nodes = (
        "NodeName=v1 CPUTot=32 AvailableFeatures=(null) Gres=gpu:4,VramPerGpu:24G "
        "RealMemory=256000 Partitions=gpu\n"
    )
    asked: list[GpuKind] = []
    site, text = discovered(
        live.parse(CONFIG, nodes, PARTITIONS), lambda kind, _: asked.append(kind) or Accepted()
    )
    option = site.option["VramPerGpu-24G"]
    assert (option.gpu, option.type, option.gres) == ("l4", None, "VramPerGpu:24G")
    assert "is it a10g, a10, rtx-4090, rtx-3090, a30 instead?" in text
    assert asked == [GpuKind(None, None, "VramPerGpu:24G")]
