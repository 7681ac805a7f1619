"""How a site file reads as Slurm's own configuration: a site in, the text of each file out, nothing
touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xmem_slurm import resources
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.lab.programs import Version
from xmem_slurm.site.schema import Gpu, Nodes, Site

TRACES = "traces"
"""The folder in the lab's where jobs with GPUs leave their traces."""

# cgroup.conf(5): "disabled" came with this release. In older ones the v1 plugin is the quiet one:
# its init makes nothing (src/plugins/cgroup/v1/cgroup_v1.c), while the v2 plugin wants systemd as
# soon as slurmd starts.
_CGROUP_DISABLED_SINCE: Version = (24, 5)


@dataclass(frozen=True)
class Surroundings:
    """What the configuration says that no site file does.

    `address` is the IPv4 address the daemons are called at; `loopback_only` makes them listen there
    and nowhere else. `ports` has one TCP port by daemon: `slurmctld`, `slurmd.NODE`, and with
    accounting `slurmdbd` and `mariadbd`. `password` is the database's, empty without accounting.
    `hooks` has the text of Slurm's Lua hooks by file name.
    """

    folder: Path
    user: str
    address: str
    loopback_only: bool
    ports: Mapping[str, int]
    release: str
    version: Version
    accounting: bool
    password: str
    hooks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _NodeGpus:
    """The GPUs of one type in a node, or shares of them (`name` is then `shard` or `mps`, `count`
    the node's units).

    `devices` is the part of the device files' names that counts: `0` or `[0-3]`.
    """

    name: str
    type: str | None
    count: int
    devices: str

    @property
    def gres(self) -> str:
        return ":".join(filter(None, [self.name, self.type, str(self.count)]))


@dataclass(frozen=True)
class _Node:
    name: str
    cpus: int
    memory_mib: int
    features: tuple[str, ...]
    gpus: tuple[_NodeGpus, ...]
    extras: Mapping[str, str]
    """Amounts of what the site's options want beside the GPU (`VramPerGpu`: `24G`), of which no job
    uses any up."""
    stand_in: Mapping[str, str]
    """The environment of a job with GPUs there."""

    @property
    def daemon(self) -> str:
        return f"slurmd.{self.name}"

    @property
    def resources(self) -> Sequence[str]:
        return [*(gpu.name for gpu in self.gpus), *self.extras]

    @property
    def gres(self) -> str:
        extras = (f"{name}:no_consume:{amount}" for name, amount in self.extras.items())
        return ",".join([*(gpu.gres for gpu in self.gpus), *extras])


def files(
    site: Site, gpus: Mapping[str, Gpu], names: Sequence[Sequence[str]], around: Surroundings
) -> dict[str, str]:
    """Return the text of each configuration file by its name in the lab's folder.

    `gpus` has the catalogue's entry of each option; `names` has, for each of the site's node groups
    in order, the names that its host list stands for.
    """
    nodes = [
        _node(site, group, name, _stand_in(site, group, gpus, around.folder / TRACES))
        for group, members in zip(site.nodes, names, strict=True)
        for name in members
    ]
    members_of = list(zip(site.nodes, names, strict=True))
    partitions = [
        {
            "name": name,
            "nodes": [
                node
                for group, members in members_of
                if name in group.partitions
                for node in members
            ],
            "default": partition.default,
            "max_time": partition.max_time,
        }
        for name, partition in site.partition.items()
    ]
    values = {
        **vars(around),
        "site": site,
        "nodes": nodes,
        "partitions": partitions,
        "version": around.release,
        "cgroup_plugin": "disabled" if around.version >= _CGROUP_DISABLED_SINCE else "cgroup/v1",
        # A job that names no memory gets its CPUs' share of the poorest node, so that jobs can
        # share every node.
        "memory_per_cpu_mib": min(group.memory_mib // group.cpus for group in site.nodes) or 1,
        "gres_types": list(
            dict.fromkeys(["gpu", *(name for node in nodes for name in node.resources)])
        ),
        "tres": sorted({f"gres/{gpu.name}" for node in nodes for gpu in node.gpus} | {"gres/gpu"})
        + sorted(
            {f"gres/{gpu.name}:{gpu.type}" for node in nodes for gpu in node.gpus if gpu.type}
        ),
    }
    places = resources.template_places("lab", site.templates)
    wanted = ["slurm.conf", "gres.conf", "cgroup.conf", "task_prolog.sh"]
    wanted += ["slurmdbd.conf"] if around.accounting else []
    return {name: resources.render(places, f"{name}.j2", values) for name in wanted} | dict(
        around.hooks
    )


def device_count(site: Site) -> int:
    """Return how many device files the best equipped node needs: `dev/nvidia0` and up, shared by
    all nodes.
    """
    return max(_whole_gpus(site, group) for group in site.nodes)


def _whole_gpus(site: Site, group: Nodes) -> int:
    """Return how many GPUs and MIG instances a node has; shares are of GPUs that count already."""
    return sum(count for name, count in group.gpus.items() if site.option[name].share is None)


def _stand_in(site: Site, group: Nodes, gpus: Mapping[str, Gpu], traces: Path) -> dict[str, str]:
    """Say what shows a job the node's GPUs, and holds it to their memory; all alike the first where
    kinds are mixed.
    """
    if not group.gpus:
        return {}
    gpu = gpus[next(iter(group.gpus))]
    variables = gpu_environment.environment(gpu, _whole_gpus(site, group), traces, python_path=None)
    return variables | {"XMEM_ENGINE": "device", "XMEM_DEVICE_LIMIT_BYTES": str(gpu.total_bytes)}


def _node(site: Site, group: Nodes, name: str, environment: Mapping[str, str]) -> _Node:
    """Return one node as its gres.conf and prolog describe it: GPUs by type, then shares of
    them.
    """
    # Options that differ in their constraint only are one GRES type, and Slurm wants each type
    # once.
    counts: dict[str | None, int] = {}
    for option, count in group.gpus.items():
        if site.option[option].share is None:
            kind = site.option[option].type
            counts[kind] = counts.get(kind, 0) + count
    gpus: list[_NodeGpus] = []
    firsts: dict[str | None, int] = {}
    for kind, count in counts.items():
        firsts[kind] = sum(counts[before] for before in firsts)
        gpus.append(_NodeGpus("gpu", kind, count, _devices(firsts[kind], count)))
    for option, count in group.gpus.items():
        share = site.option[option].share
        if share is not None:
            first = firsts[site.option[share.of].type]
            units, kind = count * share.per_gpu, site.option[option].type
            gpus.append(_NodeGpus(share.kind, kind, units, _devices(first, count)))
    wanted = [site.option[option].gres for option in group.gpus]
    extras = {
        entry.partition(":")[0]: entry.partition(":")[2] for entry in wanted if entry is not None
    }
    return _Node(
        name, group.cpus, group.memory_mib, group.features, tuple(gpus), extras, environment
    )


def _devices(first: int, count: int) -> str:
    return str(first) if count == 1 else f"[{first}-{first + count - 1}]"
