"""Choose what to ask for: the cheapest GPU option of the site on which the job fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xmem_slurm.site.schema import Gpu, Nodes, Site
from xmem_slurm.slurm import constraint


@dataclass(frozen=True, slots=True)
class Demand:
    """What the user's request leaves open and what it settles.

    `option` is the option of the site that the request names, if it names one; an empty `partitions` means the default.
    """

    gpus_per_node: int
    option: str | None
    partitions: Sequence[str]
    constraint: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One option that the job could go to. `fits` is None where a cheaper one was taken before it was asked."""

    name: str
    gpu: Gpu
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Placement:
    """The options in order of preference and the one chosen, None where the job fits none of them."""

    verdicts: Sequence[Verdict]
    choice: str | None


def place(demand: Demand, site: Site, gpus: Mapping[str, Gpu], fits: Callable[[str], bool]) -> Placement:
    """Ask `fits` of each option that the job could go to, cheapest first, until one does."""
    verdicts: list[Verdict] = []
    choice: str | None = None
    for name in candidates(demand, site, gpus):
        verdict = fits(name) if choice is None else None
        if verdict:
            choice = name
        verdicts.append(Verdict(name, gpus[name], verdict))
    return Placement(verdicts, choice)


def candidates(demand: Demand, site: Site, gpus: Mapping[str, Gpu]) -> list[str]:
    """Return the options on whose nodes the job could run, cheapest first, then smallest.

    A job needs a node of its partition that has as many of the GPUs as it asks for on one node, and the features of its
    constraint; where a constraint cannot be judged from here the option stays in.
    """
    open_to = [group for group in site.nodes if _is_open(group, demand, site)]
    possible = [n for n in site.option if any(g.gpus.get(n, 0) >= demand.gpus_per_node for g in open_to)]
    return sorted(possible, key=lambda name: (site.option[name].cost, gpus[name].total_bytes, name))


def _is_open(group: Nodes, demand: Demand, site: Site) -> bool:
    asked = demand.partitions or [name for name, partition in site.partition.items() if partition.default]
    if asked and not set(asked) & set(group.partitions):
        return False
    return demand.constraint is None or constraint.satisfied_by(demand.constraint, group.features) is not False
