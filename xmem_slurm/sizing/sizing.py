"""Decide which GPU option a job needs: dry run, estimate, placement, and again for each kind of GPU
in question.

What is wanted of dry runs is yielded (`dryrun.exchange.Orders`); `dryrun.dispatch` has it made.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from xmem_slurm.cluster import start_times
from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.order import Change
from xmem_slurm.errors import NoEstimate
from xmem_slurm.rewriting.sharing import not_held
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing.demand import demand_of, memory_per_node
from xmem_slurm.sizing.dry_runs import ComponentEstimates, DryRunsByKind, without_kernels
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.sizing.placement import (
    NEVER,
    Demand,
    Placement,
    Taken,
    Verdict,
    candidates,
    place,
    unit_bytes,
)
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm import script_files
from xmem_slurm.slurm.submission import Submission

CHANGES: Mapping[Change, tuple[str, str]] = {
    "batch": (
        "half the batch",
        "there is no DataLoader, or several with batches of different sizes",
    ),
    "checkpointing": (
        "checkpointing",
        "it is on already, or the model has no method that puts it on",
    ),
    "bf16": ("bf16 autocast", "autocast is on already, or no parameter is fp32"),
}
"""What advice tries (`probe/_xmem/advice.py`): its name where it could not be tried, and why the
probe left the job as it is."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a change to the job would do on the GPU option that is too small for it, from a dry run
    with that change.

    `estimate` is None where there is none, and `why_not` then says why.
    """

    option: str
    change: str
    estimate: Estimate | None
    fits: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class Sizing:
    """What a job needs, or a component of one.

    `estimate` is for the chosen option's GPU; without a choice, for the largest. `advice` is empty
    where not asked.
    """

    estimate: Estimate
    placement: Placement
    seconds: float
    advice: Sequence[Advice] = ()
    without_kernels: str = ""
    """Why the GPU that the job names is none for its torch; empty where it is one."""
    no_share: str = ""
    """Why the job is given no share of a GPU on which it fits; empty where none was in question."""
    no_smaller: str = ""
    """Why the job is given no smaller GPU than it asks for, though it would fit; empty where none
    was in question."""
    unseen_tasks: bool = False
    """Whether tasks of an array that were not run may need more, of a job that leaves open which
    GPU it gets: any that is chosen by the others may be too small for them."""
    untried: Sequence[str] = ()
    """Options on which the job may fit, for which the budget had no room."""
    asked: Verdict | None = None
    """What is known of the whole option that the request names; None where it names none."""
    made: float | None = None
    """When, in seconds since the epoch; None where nobody noted it."""
    script: str = ""
    """What the batch script is called on the command line; empty where it is no file."""
    component: int | None = None
    """Which of a heterogeneous job it is; None of an ordinary one."""
    host_requested: int = 0
    """The bytes of host memory that it asks for on each node; 0 where it leaves that to the
    site."""


def size(job: Submission, premises: Premises) -> Orders[Sizing]:
    """Find the best GPU option of the site on which `job` fits, by the site's own order.

    Raises:
        NoEstimate: as `size_components` has it for the one component of an ordinary job.
    """
    sizings = yield from size_components(job, [0], premises)
    (sizing,) = sizings.values()
    if isinstance(sizing, NoEstimate):
        raise sizing
    return sizing


def size_components(
    job: Submission, components: Sequence[int], premises: Premises, *, ask_slurm: bool = False
) -> Orders[Mapping[int, Sizing | NoEstimate]]:
    """Find for each of these components of `job` the best GPU option of the site on which it fits,
    by the site's order; or size it on the only GPU, where there is no site.

    Components are placed so that they can start together: what one has or names is no other's. A
    component has a NoEstimate where it fails on the GPU that it asks for, too, where none of its
    processes was seen, and where it asks for shares and the site lets none of that kind be changed.
    With `ask_slurm` options on which Slurm would never start it are none.
    """
    budget, site = SharedBudget(premises.budget), premises.site
    dry_runs = DryRunsByKind(premises.order(job), premises.shown, budget, premises.experience)
    if site is None:
        return _named(job, (yield from _on_one(components, dry_runs)))
    sizings = yield from _at_site(job, components, site, dry_runs, ask_slurm=ask_slurm)
    return _named(job, sizings)


def _at_site(
    job: Submission,
    components: Sequence[int],
    site: Site,
    dry_runs: DryRunsByKind,
    *,
    ask_slurm: bool,
) -> Orders[Mapping[int, Sizing | NoEstimate]]:
    requests = job.request.components
    demands = {
        index: demand_of(requests[index], site) for index in {*job.request.with_gpus, *components}
    }
    named = {
        index: Taken(demand, demand.option)
        for index, demand in demands.items()
        if demand.option is not None
    }

    def size_one(index: int) -> Orders[Sizing]:
        occupied = [claim for number, claim in named.items() if number != index]
        names = candidates(demands[index], site, dry_runs.gpus, occupied)
        starts = start_times.expected(job, site, names, index) if ask_slurm else {}
        result = yield from _size(demands[index], index, site, dry_runs, starts, occupied=occupied)
        if result.placement.choice is not None:
            named[index] = Taken(demands[index], result.placement.choice)
        return result

    return (yield from _size_all(components, size_one))


def _on_one(
    components: Sequence[int], dry_runs: DryRunsByKind
) -> Orders[Mapping[int, Sizing | NoEstimate]]:
    """Size a job on one GPU, with nothing to choose from."""
    ((name, gpu),) = dry_runs.gpus.items()

    def size_one(component: int) -> Orders[Sizing]:
        started = time.monotonic()
        result = yield from ComponentEstimates(dry_runs, component, name, name).on(name)
        verdict = Verdict(name, gpu, result.fits(gpu))
        placement = Placement([verdict], name if verdict.fits else None)
        return Sizing(result, placement, time.monotonic() - started, made=time.time())

    return (yield from _size_all(components, size_one))


def advised(sizing: Sizing, job: Submission, component: int, premises: Premises) -> Orders[Sizing]:
    """Size `job` with each of `CHANGES`, on the largest option that is too small for it, and add
    what was seen.

    The budget is for all of these dry runs together.
    """
    option, advice = sizing.placement.too_small, []
    if option is None:
        return sizing
    order, shared = replace(premises.order(job), gpu=option.gpu), SharedBudget(premises.budget)
    for change in CHANGES:
        changed = replace(order, engine="device", change=change)
        gpus = {option.name: option.gpu}
        dry_runs = DryRunsByKind(changed, gpus, shared, premises.experience)
        results = yield from _on_one([component], dry_runs)
        advice.append(_advice(option.name, change, results[component]))
    return replace(sizing, advice=advice)


def _advice(option: str, change: Change, result: Sizing | NoEstimate) -> Advice:
    name, unchanged = CHANGES[change]
    if isinstance(result, NoEstimate):
        return Advice(option, name, None, why_not=str(result))
    changes = sorted({rank.trace.changed for rank in result.estimate.ranks} - {""})
    if not changes:
        return Advice(option, name, None, why_not=unchanged)
    return Advice(option, ", ".join(changes), result.estimate, result.placement.choice is not None)


def _size_all(
    components: Sequence[int], size_one: Callable[[int], Orders[Sizing]]
) -> Orders[Mapping[int, Sizing | NoEstimate]]:
    sizings: dict[int, Sizing | NoEstimate] = {}
    for component in components:
        try:
            sizings[component] = yield from size_one(component)
        except NoEstimate as error:
            sizings[component] = error
    return sizings


def _named(
    job: Submission, sizings: Mapping[int, Sizing | NoEstimate]
) -> Mapping[int, Sizing | NoEstimate]:
    """Return them with what people know the job by, and what it asks for beside GPUs."""
    script, requests = job.command_line.script or "", job.request.components
    return {
        index: replace(
            sizing,
            script=script,
            component=index if len(requests) > 1 else None,
            host_requested=memory_per_node(requests[index]),
        )
        if isinstance(sizing, Sizing)
        else sizing
        for index, sizing in sizings.items()
    }


def _size(
    demand: Demand,
    component: int,
    site: Site,
    dry_runs: DryRunsByKind,
    starts: Mapping[str, float],
    *,
    occupied: Sequence[Taken],
) -> Orders[Sizing]:
    """Size one component, beside what the others have `occupied`.

    Raises:
        NoEstimate: there is none on the GPU that it is meant for.
    """
    started, gpus = time.monotonic(), dry_runs.gpus
    names = [name for name in candidates(demand, site, gpus, occupied) if starts.get(name) != NEVER]
    if demand.share is not None and not names:
        raise NoEstimate(
            f"the site file has no {demand.share} that this job could be given another number of"
        )
    largest = max(names or gpus, key=lambda name: gpus[name].total_bytes)
    estimates = ComponentEstimates(dry_runs, component, demand.option or largest, largest)
    placement = yield from _placed(
        place(demand, site, gpus, starts, occupied=occupied), demand, site, estimates
    )
    placement = placement.without(estimates.untried)
    estimate = yield from estimates.on(placement.choice or largest)
    without, named = "", demand.option
    if named is not None and not estimates.has_kernels(named):
        without = without_kernels(named, gpus[named], estimates.arch_list)
    return Sizing(
        estimate,
        placement,
        time.monotonic() - started,
        without_kernels=without,
        no_share=estimates.no_share,
        no_smaller=estimates.no_smaller,
        unseen_tasks=named is None and dry_runs.tasks_differ,
        untried=estimates.untried,
        asked=_requested_verdict(demand, site, placement, estimate, gpus),
        made=time.time(),
    )


def _requested_verdict(
    demand: Demand, site: Site, placement: Placement, estimate: Estimate, gpus: Mapping[str, Gpu]
) -> Verdict | None:
    """Return the verdict on the option that a request names: the placement's, else what the
    estimate says of it.
    """
    name = demand.option
    if name is None or site.option[name].share is not None:
        return None
    verdicts = [
        verdict
        for verdict in placement.verdicts
        if verdict.name == name and verdict.fits is not None
    ]
    return verdicts[0] if verdicts else Verdict(name, gpus[name], estimate.fits(gpus[name]))


def _placed(
    placing: Generator[str, int, Placement],
    demand: Demand,
    site: Site,
    estimates: ComponentEstimates,
) -> Orders[Placement]:
    """Say of each option that is asked about how many units of it the job needs."""
    try:
        name = next(placing)
        while True:
            units = yield from _units(name, demand, site, estimates)
            name = placing.send(units)
    except StopIteration as end:
        placement: Placement = end.value
        return placement


def _units(name: str, demand: Demand, site: Site, estimates: ComponentEstimates) -> Orders[int]:
    """Return how many units of an option the job needs: 1 for a whole GPU, 0 where it does not fit.

    A share must hold the whole peak, and something must hold the job to its share: neighbours have
    the rest. The limits are for one process each, and variables that all components of a job would
    get.
    """
    dry_runs, requested = estimates.dry_runs, demand.option
    smaller = (
        requested is not None
        and dry_runs.gpus[name].total_bytes < dry_runs.gpus[requested].total_bytes
    )
    # Whether tasks of an array differ is known once it was run on some kind of GPU: perhaps on this
    # one.
    if (smaller and dry_runs.tasks_differ) or not (yield from estimates.fits(name)):
        return 0
    if smaller and dry_runs.tasks_differ:
        estimates.no_smaller = (
            "no smaller GPU than the one asked for, as tasks that were not run may need more"
        )
        return 0
    estimate = yield from estimates.on(name)
    option, job = site.option[name], estimates.dry_runs.order.job
    if option.share is None:
        return 1
    if len(estimate.ranks) != 1 or len(job.gpus) != 1:
        return 0
    scripts = script_files.scripts_run(job.script, job.folder, job.environ).values()
    unheld = not_held(option, estimate.largest.trace, job.environ, [job.script, *scripts])
    if unheld is not None:
        estimates.no_share = (
            f"no share of a GPU for this job, as nothing would hold it to one: {unheld}"
        )
        return 0
    needed = -(-estimate.required_bytes // unit_bytes(name, site, estimates.dry_runs.gpus))
    needed = max(needed, option.share.least, demand.least_units)
    return needed if needed <= option.share.per_gpu else 0
