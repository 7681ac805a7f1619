"""Choose what to ask for: the best of the site's GPU options on which the job fits, by the site's own order."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xmem_slurm.site.schema import Gpu, Nodes, Site
from xmem_slurm.slurm import constraint
from xmem_slurm.units import MIB


@dataclass(frozen=True, slots=True)
class Demand:
    """What the user's request leaves open and what it settles.

    `option` is the option of the site that the request names, if it names one; an empty `partitions` means the default.
    """

    gpus_per_node: int
    option: str | None
    partitions: Sequence[str]
    constraint: str | None
    gpus_total: int = 1
    nodes: int = 1
    cpus_per_node: int = 1
    memory_bytes: int = 0
    """Host memory of a node; 0: whatever there is."""

    @property
    def is_for_one_gpu(self) -> bool:
        """Whether the whole job has one GPU; `gpus_total` says so where the number on each node is left open."""
        return max(self.gpus_total, self.gpus_per_node * self.nodes) == 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """One option that the job could go to. `fits` is None where a better one was taken before it was asked.

    `units` is how many units of a share the job needs; 1 for a whole GPU or MIG instance, 0 where it does not fit.
    """

    name: str
    gpu: Gpu
    fits: bool | None
    units: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The options in order of preference and the one chosen, None where the job fits none of them."""

    verdicts: Sequence[Verdict]
    choice: str | None

    @property
    def units(self) -> int:
        """How many units of the chosen option the job needs for each of its GPUs."""
        return next((verdict.units for verdict in self.verdicts if verdict.name == self.choice), 0)


def place(demand: Demand, site: Site, gpus: Mapping[str, Gpu], units: Callable[[str], int]) -> Placement:
    """Ask `units` of each option that the job could go to, best first, until no other could be better.

    `units` says how many units of an option the job needs, 0 where it does not fit. One unit of a share is cheap, but
    how many are needed is known only once it has been asked: a whole GPU may still be cheaper.
    """
    verdicts: list[Verdict] = []
    choice: str | None = None
    price = float("inf")
    for name in candidates(demand, site, gpus):
        if _price(name, 1, site, gpus) >= price:
            verdicts.append(Verdict(name, gpus[name], None))
            continue
        needed = units(name)
        verdicts.append(Verdict(name, gpus[name], needed > 0, needed))
        if needed and _price(name, needed, site, gpus) < price:
            choice, price = name, _price(name, needed, site, gpus)
    return Placement(verdicts, choice)


def candidates(demand: Demand, site: Site, gpus: Mapping[str, Gpu]) -> list[str]:
    """Return the options on whose nodes the job could run, best first by the site's order, then smallest.

    A job needs as many nodes of its partition as it asks for, with as many of the GPUs as it asks for on each of them,
    and the features of its constraint; where a constraint cannot be judged from here the option stays in. Shares and
    MIG instances are for jobs of one GPU: a process sees one instance only, and instances do not reach each other
    (NVIDIA's MIG User Guide, "CUDA Device Enumeration"). A share is for jobs whose partitions all allow sharing, too.
    """
    open_to = [group for group in site.nodes if _is_open(group, demand, site)]
    asked = site.partitions_of(demand.partitions)
    sharing = demand.is_for_one_gpu and bool(asked) and all(_allows_sharing(name, site) for name in asked)
    possible = [
        name
        for name, option in site.option.items()
        if sum(_count(g.names) for g in open_to if g.gpus.get(name, 0) >= demand.gpus_per_node) >= demand.nodes
        and gpus[name].total_bytes >= site.policy.least_bytes
        and (option.share is None or sharing)
        and (gpus[name].mig_of is None or demand.is_for_one_gpu)
    ]
    return sorted(possible, key=lambda name: (_price(name, 1, site, gpus), gpus[name].total_bytes, name))


def unit_bytes(name: str, site: Site, gpus: Mapping[str, Gpu]) -> int:
    """Return the bytes of GPU memory that one unit of an option stands for: the whole GPU's, or its share's."""
    share = site.option[name].share
    return gpus[name].total_bytes // (share.per_gpu if share is not None else 1)


def _price(name: str, units: int, site: Site, gpus: Mapping[str, Gpu]) -> float:
    """What is to be kept low: cost, or the GPU memory that is taken away from others."""
    if site.policy.order == "memory":
        return units * unit_bytes(name, site, gpus)
    return units * site.option[name].cost


def _count(host_list: str) -> int:
    """Return how many hosts a Slurm host list names: "a[1-2,7],b1" names four."""
    count = 0
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", host_list):
        hosts = 1
        for numbers in re.findall(r"\[([^\]]*)\]", part):
            ends = [each.partition("-") for each in numbers.split(",")]
            hosts *= sum(int(last or first) - int(first) + 1 for first, _, last in ends)
        count += hosts
    return count


def _allows_sharing(partition: str, site: Site) -> bool:
    return partition in site.partition and site.partition[partition].sharing


def _is_open(group: Nodes, demand: Demand, site: Site) -> bool:
    asked = site.partitions_of(demand.partitions)
    if asked and not set(asked) & set(group.partitions):
        return False
    if group.cpus < demand.cpus_per_node or group.memory_mib * MIB < demand.memory_bytes:
        return False
    return demand.constraint is None or constraint.satisfied_by(demand.constraint, group.features) is not False
