"""Where do a site file and the live cluster disagree, and which of the file's options would Slurm refuse?"""

import os
from collections import Counter
from collections.abc import Sequence

from xmem_slurm.errors import SlurmError
from xmem_slurm.site.live import Cluster, Node
from xmem_slurm.site.schema import Nodes, Option, Site
from xmem_slurm.slurm import client

_SECONDS = 20.0


def differences(site: Site, cluster: Cluster, names: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each thing that is not as the file says; `names` has each node group's names, in order."""
    live = {node.name: node for node in cluster.nodes}
    found: list[str] = []
    for group, members in zip(site.nodes, names, strict=True):
        for name in members:
            if name in live:
                found += [f"node {name}: {line}" for line in _of_node(site, group, live[name])]
            else:
                found.append(f"node {name}: the cluster has none of this name")
    listed = {name for members in names for name in members}
    found += [
        f"node {node.name}: not in the file, and has {','.join(map(str, node.gres))}"
        for node in cluster.nodes
        if node.gres and node.partitions and node.name not in listed
    ]
    return found + _of_partitions(site, cluster)


def refusals(site: Site) -> list[str]:
    """Ask Slurm for each option in each partition that has it (`sbatch --test-only`); return what it refused, and why.

    Raises:
        SlurmError: there is no sbatch.
    """
    sbatch = str(client.find_sbatch(os.environ))
    found: list[str] = []
    for name, option in site.option.items():
        for partition in dict.fromkeys(p for group in site.nodes if name in group.gpus for p in group.partitions):
            words = [f"--partition={partition}", "--time=1", *request_words(option)]
            try:
                client.run([sbatch, "--test-only", *words, "--wrap=true"], _SECONDS)
            except SlurmError as error:
                found.append(f"option {name}: sbatch {' '.join(words)}: {error}")
    return found


def request_words(option: Option, count: int = 1) -> list[str]:
    """Return the options of sbatch or srun that ask for `count` of an option on a node."""
    resource = option.share.kind if option.share is not None else "gpu"
    words = [":".join(filter(None, ["--gres=" + resource, option.type, str(count)]))]
    return [*words, f"--constraint={option.constraint}"] if option.constraint is not None else words


def _of_node(site: Site, group: Nodes, node: Node) -> list[str]:
    wanted, has = _wanted(site, group), _configured(node)
    found = [
        f"has {has[key]} of {':'.join(filter(None, key))}, the file says {wanted[key]}"
        for key in {**wanted, **has}
        if has[key] != wanted[key]
    ]
    missing = sorted(set(group.features) - set(node.features))
    if missing:
        found.append(f"lacks the features {', '.join(missing)}")
    if set(group.partitions) != set(node.partitions):
        found.append(f"is in the partitions {', '.join(node.partitions)}, the file says {', '.join(group.partitions)}")
    if (group.cpus, group.memory_mib) != (node.cpus, node.memory_mib):
        found.append(
            f"has {node.cpus} CPUs and {node.memory_mib} MiB, the file says {group.cpus} and {group.memory_mib}"
        )
    return found


def _wanted(site: Site, group: Nodes) -> Counter[tuple[str, str | None]]:
    counts: Counter[tuple[str, str | None]] = Counter()
    for name, count in group.gpus.items():
        option = site.option[name]
        if option.share is None:
            counts["gpu", option.type] += count
        else:
            counts[option.share.kind, None] += count * option.share.per_gpu
    return counts


def _configured(node: Node) -> Counter[tuple[str, str | None]]:
    """Count GPUs by type, and shares without: Slurm types them as their GPU, whether gres.conf does or not."""
    counts: Counter[tuple[str, str | None]] = Counter()
    for entry in node.gres:
        counts[entry.name, entry.type if entry.is_gpu else None] += entry.amount
    return counts


def _of_partitions(site: Site, cluster: Cluster) -> list[str]:
    live = {partition.name: partition for partition in cluster.partitions}
    found = [f"partition {name}: the cluster has none of this name" for name in site.partition if name not in live]
    for name, partition in site.partition.items():
        if name not in live:
            continue
        if partition.default != live[name].default:
            found.append(f"partition {name}: default is {str(live[name].default).lower()} on the cluster")
        if partition.max_time != live[name].max_time:
            found.append(f"partition {name}: max_time is {live[name].max_time} on the cluster")
    return found
