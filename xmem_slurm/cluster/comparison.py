"""Where do a site file and the live cluster disagree, and which of the file's options would Slurm
refuse?
"""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from xmem_slurm.cluster import client
from xmem_slurm.cluster.live import Cluster, Node
from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting import dialect
from xmem_slurm.site.schema import Nodes, Site
from xmem_slurm.slurm import hostlist

_AT_ONCE = 4
"""Questions to slurmctld at a time."""


def differences(site: Site, cluster: Cluster) -> list[str]:
    """Return a line for each thing that is not as the file says; what the file cannot say is left
    out.
    """
    live = {node.name: node for node in cluster.nodes}
    lines: list[str] = []
    listed: set[str] = set()
    for group in site.nodes:
        for name in _names(group):
            listed.add(name)
            if name in live:
                lines += [f"node {name}: {line}" for line in _of_node(site, group, live[name])]
            else:
                lines.append(f"node {name}: the cluster has none of this name")
    lines += [
        f"node {node.name}: not in the file, and has {','.join(map(str, node.gres))}"
        for node in cluster.nodes
        if node.gres and node.partitions and node.name not in listed
    ]
    return lines + _of_partitions(site, cluster)


def refusals(site: Site) -> list[str]:
    """Ask Slurm for each option in each partition that has it (`sbatch --test-only`); return what
    it refused, and why.

    Options are asked for as a job would, in the site's dialect.

    Raises:
        SlurmError: there is no sbatch.
    """
    sbatch = client.find_sbatch(os.environ)

    def refusal(name: str, partition: str) -> str | None:
        words: Sequence[str] = ()
        try:
            words = dialect.words(site.option[name], site.dialect)
            why = client.trial(sbatch, partition, words)
        except UsageError as error:
            why = str(error)
        typed = " ".join(["sbatch", f"--partition={partition}", "--time=1", *words])
        return f"option {name}: {typed}: {why}" if why is not None else None

    places = {
        (name, partition)
        for group in site.nodes
        for name in group.gpus
        for partition in group.partitions
        if name in site.option
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [
            line
            for line in pool.map(refusal, *zip(*sorted(places), strict=True))
            if line is not None
        ]


def _names(group: Nodes) -> Sequence[str]:
    """Return the names of a group; none where they are no host list, which `consistency` says."""
    try:
        return hostlist.expand(group.names)
    except UsageError:
        return ()


def _of_node(site: Site, group: Nodes, node: Node) -> list[str]:
    """Return a line for each thing about a node that is not as the site file's group says."""
    wanted, has = _wanted(site, group), _configured(node)
    lines = [
        f"has {has[key]} of {':'.join(filter(None, key))}, the file says {wanted[key]}"
        for key in {**wanted, **has}
        if has[key] != wanted[key]
    ]
    missing = sorted(set(group.features) - set(node.features))
    if missing:
        lines.append(f"lacks the features {', '.join(missing)}")
    if set(group.partitions) != set(node.partitions):
        lines.append(
            f"is in the partitions {', '.join(node.partitions)}, the file says "
            f"{', '.join(group.partitions)}"
        )
    if (group.cpus, group.memory_mib) != (node.cpus, node.memory_mib):
        lines.append(
            f"has {node.cpus} CPUs and {node.memory_mib} MiB, the file says {group.cpus} and "
            f"{group.memory_mib}"
        )
    return lines


def _wanted(site: Site, group: Nodes) -> Counter[tuple[str, str | None]]:
    counts: Counter[tuple[str, str | None]] = Counter()
    for name, count in group.gpus.items():
        option = site.option.get(name)
        if option is None:
            continue
        if option.share is None:
            counts["gpu", option.type] += count
        else:
            counts[option.share.kind, None] += count * option.share.per_gpu
    return counts


def _configured(node: Node) -> Counter[tuple[str, str | None]]:
    """Count GPUs by type, and shares without: Slurm types them as their GPU, whether gres.conf does
    or not.
    """
    counts: Counter[tuple[str, str | None]] = Counter()
    for entry in node.gres:
        counts[entry.name, entry.type if entry.is_gpu else None] += entry.amount
    return counts


def _of_partitions(site: Site, cluster: Cluster) -> list[str]:
    live = {partition.name: partition for partition in cluster.partitions}
    lines = [
        f"partition {name}: the cluster has none of this name"
        for name in site.partition
        if name not in live
    ]
    used = {partition for node in cluster.nodes if node.gres for partition in node.partitions}
    lines += [
        f"partition {name}: not in the file, and has GPUs"
        for name in live
        if name in used - set(site.partition)
    ]
    for name, partition in site.partition.items():
        if name not in live:
            continue
        if partition.default != live[name].default:
            lines.append(
                f"partition {name}: default is {str(live[name].default).lower()} on the cluster"
            )
        if _seconds(partition.max_time) != _seconds(live[name].max_time):
            lines.append(f"partition {name}: max_time is {live[name].max_time} on the cluster")
    return lines


def _seconds(limit: str) -> float:
    """Return a time limit in seconds: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S` (sbatch(1),
    --time).
    """
    if limit in ("UNLIMITED", "INFINITE"):
        return float("inf")
    days, dash, clock_time = limit.rpartition("-")
    numbers = [int(number) for number in clock_time.split(":")]
    if not dash:
        numbers = [0, *numbers] if len(numbers) < 3 else numbers
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
