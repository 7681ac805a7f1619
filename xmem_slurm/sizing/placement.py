"""Choose what to ask for: the best of the site's GPU options on which the job fits, by the site's
own order.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from xmem_slurm.site.schema import Gpu, Nodes, Order, Share, Site
from xmem_slurm.slurm import constraint, hostlist
from xmem_slurm.units import MIB

_ALIKE_SECONDS = 60
NEVER = float("inf")
_WORST = (NEVER, NEVER)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the user's request leaves open and what it settles.

    `option` is the option of the site that the request names, if it names one; an empty
    `partitions` means the default.
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
    alone: bool = False
    """The job wants its nodes to itself: a share of a GPU is none."""
    whole_nodes: bool = False
    """It gets all GPUs of its nodes (`--exclusive` without a value, sbatch(1)): they must be those
    that it asks for."""
    share: str | None = None
    """`shard` or `mps` where the request is for shares of that kind; such a job stays with its
    kind."""
    least_units: int = 1
    """No fewer units of a share: percent of MPS are percent of the GPU's threads, which nobody has
    estimated."""

    @property
    def is_for_one_gpu(self) -> bool:
        """Whether the whole job has one GPU; `gpus_total` says so where the number on each node is
        left open.
        """
        return max(self.gpus_total, self.gpus_per_node * self.nodes) == 1


class Taken(NamedTuple):
    """What another component of the same job has, or names: components start together, or not at
    all.
    """

    demand: Demand
    option: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One option that the job could go to. `fits` is None where it was not tried: a better one was
    taken before, or there was no time (`Sizing.untried`).

    `units` is how many units of a share the job needs; 1 for a whole GPU or MIG instance, 0 where
    it does not fit. `share` is what the site file says of the share; None for a whole GPU or MIG
    instance.
    """

    name: str
    gpu: Gpu
    fits: bool | None
    units: int = 1
    share: Share | None = None

    @property
    def job_gpu(self) -> Gpu:
        """The GPU as the job would have it: of a share that fits, with so many units' memory."""
        if self.share is None or not self.fits:
            return self.gpu
        return self.gpu.model_copy(
            update={"total_bytes": self.units * (self.gpu.total_bytes // self.share.per_gpu)}
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The options in order of preference and the one chosen, None where the job fits none of them.

    `tied` are those that would have been no worse by the `order`, but are larger or come later by
    name. `starts` has the seconds since the epoch at which Slurm expects each option to be free,
    where it was asked.
    """

    verdicts: Sequence[Verdict]
    choice: str | None
    order: Order = "cost"
    tied: Sequence[str] = ()
    starts: Mapping[str, float] = field(default_factory=dict)

    @property
    def too_small(self) -> Verdict | None:
        """The largest GPU or MIG instance that was found too small: the first that the job could be
        made to fit.
        """
        tried = (
            verdict for verdict in self.verdicts if verdict.fits is False and verdict.share is None
        )
        return max(tried, key=lambda verdict: verdict.gpu.total_bytes, default=None)

    def without(self, untried: Collection[str]) -> "Placement":
        """Return it with no verdict on options that were left out, as they could not be tried."""
        verdicts = [
            replace(verdict, fits=None) if verdict.name in untried else verdict
            for verdict in self.verdicts
        ]
        return replace(self, verdicts=verdicts)

    @property
    def units(self) -> int:
        """How many units of the chosen option the job needs for each of its GPUs."""
        return next((verdict.units for verdict in self.verdicts if verdict.name == self.choice), 0)


def place(
    demand: Demand,
    site: Site,
    gpus: Mapping[str, Gpu],
    starts: Mapping[str, float] = MappingProxyType({}),
    *,
    occupied: Sequence["Taken"] = (),
) -> Generator[str, int, Placement]:
    """Ask about each option that the job could go to, best first, until no other could be better.

    It yields the option, and is sent how many units of it the job needs, 0 where it does not fit.
    One unit of a share is cheap, but how many are needed is known only once it has been asked: a
    whole GPU may still be cheaper. `starts` counts where the site ranks by it; without it that
    order is the one by cost. What never starts (infinity) is no option. `occupied` is what the
    other components of the job have.
    """
    ranking = _Ranking(site, gpus, starts)
    verdicts: list[Verdict] = []
    choice, best = None, _WORST
    tied: list[str] = []
    possible = [
        name for name in candidates(demand, site, gpus, occupied) if starts.get(name) != NEVER
    ]
    for name in sorted(possible, key=lambda name: (ranking.price(name, 1), *_size(name, gpus))):
        share = site.option[name].share
        hope = ranking.price(name, share.least if share is not None else 1)
        if hope >= best:
            verdicts.append(Verdict(name, gpus[name], None, share=share))
            tied += [name] if hope == best else []
            continue
        needed = yield name
        verdicts.append(Verdict(name, gpus[name], needed > 0, needed, share))
        if needed and ranking.price(name, needed) < best:
            choice, best, tied = name, ranking.price(name, needed), []
    return Placement(
        verdicts, choice, site.policy.order, tied, starts if site.policy.order == "start" else {}
    )


def candidates(
    demand: Demand, site: Site, gpus: Mapping[str, Gpu], occupied: Sequence["Taken"] = ()
) -> list[str]:
    """Return the options on whose nodes the job could run, best first by the site's order, then
    smallest.

    A job needs as many nodes of its partition as it asks for, with as many of the GPUs as it asks
    for on each of them, beside those that are `occupied`, as many in all, and the features of its
    constraint; where a constraint cannot be judged from here the option stays in. Shares and MIG
    instances are for jobs of one GPU: a process sees one instance only, and instances do not reach
    each other (NVIDIA's MIG User Guide, "CUDA Device Enumeration"). A share is for jobs whose
    partitions all allow sharing, too. What the request itself names is open to it, whatever the
    policy's bounds.
    """
    partitions = site.partitions_of(demand.partitions)
    allowed = bool(partitions) and all(_allows_sharing(name, site) for name in partitions)
    sharing = allowed and demand.is_for_one_gpu and not demand.alone
    kinds = (demand.share,) if demand.share is not None else (None, "shard", "mps")
    most_bytes = site.policy.most_bytes or NEVER
    possible = [
        name
        for name, option in site.option.items()
        if _has_room(name, demand, site, occupied)
        and (
            site.policy.least_bytes <= gpus[name].total_bytes <= most_bytes or name == demand.option
        )
        and (option.share.kind if option.share is not None else None) in kinds
        and (option.share is None or sharing)
        and (demand.share is None or demand.option in (None, name))
        and (gpus[name].mig_of is None or demand.is_for_one_gpu)
    ]
    ranking = _Ranking(site, gpus, {})
    return sorted(possible, key=lambda name: (ranking.price(name, 1), *_size(name, gpus)))


def _has_room(name: str, demand: Demand, site: Site, occupied: Sequence[Taken]) -> bool:
    """Whether enough nodes have enough GPUs of an option left; the other components get the fullest
    that will do.
    """
    nodes = [
        group for group in site.nodes if name in group.gpus for _ in hostlist.expand(group.names)
    ]
    free = [group.gpus[name] for group in nodes]
    ours = [_is_open(group, demand, site) for group in nodes]
    for other_demand in (claim.demand for claim in occupied if claim.option == name):
        theirs = [
            n
            for n, group in enumerate(nodes)
            if _is_open(group, other_demand, site) and free[n] >= other_demand.gpus_per_node
        ]
        for n in sorted(theirs, key=lambda n: (ours[n], free[n]))[: other_demand.nodes]:
            free[n] -= other_demand.gpus_per_node
    remaining = [
        free[n] if _serves(group, name, demand, site) else 0
        for n, group in enumerate(nodes)
        if ours[n]
    ]
    enough = sum(count >= demand.gpus_per_node for count in remaining) >= demand.nodes
    return enough and sum(remaining) >= demand.gpus_total


def _serves(group: Nodes, name: str, demand: Demand, site: Site) -> bool:
    if not demand.whole_nodes:
        return True
    return (
        group.gpus[name]
        == demand.gpus_per_node
        == sum(n for option, n in group.gpus.items() if site.option[option].share is None)
    )


def _size(name: str, gpus: Mapping[str, Gpu]) -> tuple[int, str]:
    """Return what decides between equal prices."""
    return gpus[name].total_bytes, name


def unit_bytes(name: str, site: Site, gpus: Mapping[str, Gpu]) -> int:
    """Return the bytes of GPU memory that one unit of an option stands for: the whole GPU's, or its
    share's.
    """
    share = site.option[name].share
    return gpus[name].total_bytes // (share.per_gpu if share is not None else 1)


@dataclass(frozen=True)
class _Ranking:
    """The site's order of options as a price, the lower the better."""

    site: Site
    gpus: Mapping[str, Gpu]
    starts: Mapping[str, float]

    def price(self, name: str, units: int) -> tuple[float, float]:
        """Return what is to be kept low: cost, the GPU memory that is taken away from others, or
        the wait and cost.

        Starts within the same minute of the earliest are alike: Slurm is asked about one after the
        other.
        """
        order, cost = self.site.policy.order, units * self.site.option[name].cost
        if order == "memory":
            return units * unit_bytes(name, self.site, self.gpus), 0
        if order == "start":
            if name not in self.starts:
                return NEVER, cost
            return (self.starts[name] - min(self.starts.values())) // _ALIKE_SECONDS, cost
        return cost, 0


def _allows_sharing(partition: str, site: Site) -> bool:
    return partition in site.partition and site.partition[partition].sharing


def _is_open(group: Nodes, demand: Demand, site: Site) -> bool:
    partitions = site.partitions_of(demand.partitions)
    if partitions and not set(partitions) & set(group.partitions):
        return False
    if group.cpus < demand.cpus_per_node or group.memory_mib * MIB < demand.memory_bytes:
        return False
    return (
        demand.constraint is None
        or constraint.satisfied_by(demand.constraint, group.features) is not False
    )
