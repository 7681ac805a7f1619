"""Decide which GPU option a job needs: dry run, estimate, placement, and again for each kind of GPU in question."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import ranks, spending
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import Asked, Change, DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.rewriting.sharing import not_held
from xmem_slurm.site.schema import DryRuns, Gpu, GpuOption, Site
from xmem_slurm.sizing import kernels
from xmem_slurm.sizing.estimate import Estimate, estimate
from xmem_slurm.sizing.placement import NEVER, Demand, Placement, Taken, Verdict, candidates, place, unit_bytes
from xmem_slurm.slurm import gres, script_files
from xmem_slurm.slurm.request import GpuRequest, Request
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Noted, Trace, fail_on_any_gpu

Starts = Callable[[Sequence[str], int], Mapping[str, float]]
"""Says when each of these options would be free for a component, in seconds since the epoch; infinity: never."""


_HERE = DryRuns()
_NOTHING = Asked()


def _no_starts(_names: Sequence[str], _component: int) -> Mapping[str, float]:
    return {}


CHANGES: Mapping[Change, tuple[str, str]] = {
    "batch": ("half the batch", "there is no DataLoader, or several with batches of different sizes"),
    "checkpointing": ("checkpointing", "it is on already, or the model has no method that puts it on"),
    "bf16": ("bf16 autocast", "autocast is on already, or no parameter is fp32"),
}
"""What advice tries (`probe/_xmem/advice.py`): its name where it could not be tried, and why the probe left the job as
it is."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a change to the job would do on the GPU option that is too small for it, from a dry run with that change.

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

    `estimate` is for the chosen option's GPU; without a choice, for the largest. `advice` is empty where not asked.
    """

    estimate: Estimate
    placement: Placement
    seconds: float
    advice: Sequence[Advice] = ()
    without_kernels: str = ""
    """Why the GPU that the job names is none for its torch; empty where it is one."""
    no_share: str = ""
    """Why the job is given no share of a GPU on which it fits; empty where none was in question."""


def size(
    job: Submission,
    site: Site,
    gpus: Mapping[str, Gpu],
    budget: Budget,
    *,
    asked: Asked = _NOTHING,
    starts: Starts = _no_starts,
) -> Sizing:
    """Find the best GPU option of the site on which `job` fits, by the site's own order.

    Raises:
        NoEstimate: as `size_components` has it for the one component of an ordinary job.
        XmemError: as `elsewhere.run` does.
    """
    (found,) = size_components(job, [0], site, gpus, budget, asked=asked, starts=starts).values()
    if isinstance(found, NoEstimate):
        raise found
    return found


def size_components(
    job: Submission,
    components: Sequence[int],
    site: Site,
    gpus: Mapping[str, Gpu],
    budget: Budget,
    *,
    asked: Asked = _NOTHING,
    starts: Starts = _no_starts,
) -> Mapping[int, Sizing | NoEstimate]:
    """Find for each of these components of `job` the best GPU option of the site on which it fits, by the site's order.

    The job is shown GPUs smaller by what the site's policy wants spared. Components are placed so that they can start
    together: what one has or names is no other's. A component has a NoEstimate where it fails on the GPU that it asks
    for, too, where none of its processes was seen, and where it asks for shares and the site lets none of that kind be
    changed.

    Raises:
        XmemError: as `elsewhere.run` does, but for NoEstimate.
    """
    kept = 1 - site.policy.spare
    gpus = {n: gpu.model_copy(update={"total_bytes": int(gpu.total_bytes * kept)}) for n, gpu in gpus.items()}
    requests, some_gpu = job.request.components, next(iter(gpus.values()))
    order = DryRunOrder.of(from_submission(job), some_gpu, budget.within(site.dry_run), asked)
    dry_runs = _DryRuns(order, gpus, site.dry_run)
    demands = {index: demand_of(requests[index], site) for index in job.request.with_gpus}
    named = {index: Taken(demand, demand.option) for index, demand in demands.items() if demand.option is not None}

    def size_one(index: int) -> Sizing:
        others = [each for number, each in named.items() if number != index]
        found = _size(demands[index], index, site, dry_runs, starts, taken=others)
        if found.placement.choice is not None:
            named[index] = Taken(demands[index], found.placement.choice)
        return found

    return _each(components, size_one)


def on_one(
    job: Submission,
    components: Sequence[int],
    name: str,
    gpu: Gpu,
    budget: Budget,
    *,
    asked: Asked = _NOTHING,
    where: DryRuns = _HERE,
) -> Mapping[int, Sizing | NoEstimate]:
    """Run `job` dry on one GPU, with nothing to choose from; `where` is what a site says of dry runs.

    Raises:
        XmemError: as `runner.run` does, but for NoEstimate.
    """
    order = DryRunOrder.of(from_submission(job), gpu, budget.within(where), asked)
    return _on_one(order, components, name, where)


def _on_one(
    order: DryRunOrder, components: Sequence[int], name: str, where: DryRuns
) -> Mapping[int, Sizing | NoEstimate]:
    dry_runs, gpu = _DryRuns(order, {name: order.gpu}, where), order.gpu

    def size_one(component: int) -> Sizing:
        started = time.monotonic()
        found = _Estimates(dry_runs, component, name).on(name)
        verdict = Verdict(name, gpu, found.fits(gpu))
        return Sizing(found, Placement([verdict], name if verdict.fits else None), time.monotonic() - started)

    return _each(components, size_one)


def advised(
    sizing: Sizing,
    job: Submission,
    component: int,
    budget: Budget,
    *,
    asked: Asked = _NOTHING,
    where: DryRuns = _HERE,
) -> Sizing:
    """Run `job` dry with each of `CHANGES`, on the largest option that is too small for it, and add what was seen.

    `budget` is for all of these dry runs together.

    Raises:
        XmemError: as `runner.run` does, but for NoEstimate.
    """
    option, started, found = sizing.placement.too_small, spending.now(), []
    if option is None:
        return sizing
    for change in CHANGES:
        order = DryRunOrder.of(from_submission(job), option.gpu, budget.since(started).within(where), asked)
        changed = replace(order, engine="device", change=change)
        result = _on_one(changed, [component], option.name, where)[component]
        found.append(_advice(option.name, change, result))
    return replace(sizing, advice=found)


def _advice(option: str, change: Change, result: Sizing | NoEstimate) -> Advice:
    name, unchanged = CHANGES[change]
    if isinstance(result, NoEstimate):
        return Advice(option, name, None, why_not=str(result))
    made = sorted({rank.trace.changed for rank in result.estimate.ranks} - {""})
    if not made:
        return Advice(option, name, None, why_not=unchanged)
    return Advice(option, ", ".join(made), result.estimate, result.placement.choice is not None)


def _each(components: Sequence[int], size_one: Callable[[int], Sizing]) -> Mapping[int, Sizing | NoEstimate]:
    found: dict[int, Sizing | NoEstimate] = {}
    for component in components:
        try:
            found[component] = size_one(component)
        except NoEstimate as error:
            found[component] = error
    return found


def _size(
    demand: Demand, component: int, site: Site, dry_runs: "_DryRuns", starts: Starts, *, taken: Sequence[Taken]
) -> Sizing:
    started, gpus = time.monotonic(), dry_runs.gpus
    names = candidates(demand, site, gpus, taken)
    known = starts(names, component)
    names = [name for name in names if known.get(name) != NEVER]
    if demand.share is not None and not names:
        raise NoEstimate(f"the site file has no {demand.share} that this job could be given another number of")
    largest = max(names or gpus, key=lambda name: gpus[name].total_bytes)
    estimates = _Estimates(dry_runs, component, demand.option or largest)
    placement = place(demand, site, gpus, lambda name: _units(name, demand, site, estimates), known, taken=taken)
    found = estimates.on(placement.choice or largest)
    named = demand.option if demand.option is not None and not estimates.has_kernels(demand.option) else None
    without = _without_kernels(named, gpus[named], estimates.arch_list) if named is not None else ""
    return Sizing(found, placement, time.monotonic() - started, without_kernels=without, no_share=estimates.no_share)


def _without_kernels(name: str, gpu: Gpu, arch_list: Sequence[str]) -> str:
    compiled = ", ".join(arch_list)
    return f"the job's torch has no kernels for {name} (compute capability {gpu.capability}): it has {compiled}"


def _units(name: str, demand: Demand, site: Site, estimates: "_Estimates") -> int:
    """Return how many units of an option the job needs: 1 for a whole GPU, 0 where it does not fit.

    A share must hold the whole peak, and something must hold the job to its share: neighbours have the rest. The limits
    are for one process each, and variables that all components of a job would get.
    """
    if not estimates.fits(name):
        return 0
    option, found, job = site.option[name], estimates.on(name), estimates.dry_runs.order.job
    if option.share is None:
        return 1
    if len(found.ranks) != 1 or len(job.gpus) != 1:
        return 0
    scripts = script_files.scripts_run(job.script, job.folder, job.environ).values()
    unheld = not_held(option, found.largest.trace, job.environ, [job.script, *scripts])
    if unheld is not None:
        estimates.no_share = f"no share of a GPU for this job, as nothing would hold it to one: {unheld}"
        return 0
    needed = -(-found.required_bytes // unit_bytes(name, site, estimates.dry_runs.gpus))
    needed = max(needed, option.share.least, demand.least_units)
    return needed if needed <= option.share.per_gpu else 0


def demand_of(request: Request, site: Site) -> Demand:
    """Return what a request leaves open, in the site's words."""
    shares = [each for each in request.accelerators if each.resource in gres.SHARED]
    if shares:
        named = [name for name, option in site.option.items() if _is_share_of(option, shares[0], site)]
    else:
        types = request.gpu_types
        named = [name for name, option in site.option.items() if option.share is None and option.type in types]
    return Demand(
        gpus_per_node=request.gpus_per_node or 1,
        option=named[0] if len(named) == 1 else None,
        partitions=request.partitions,
        constraint=request.constraint,
        gpus_total=request.gpus_total or 1,
        nodes=request.nodes or 1,
        cpus_per_node=request.cpus_per_node,
        memory_bytes=_memory_per_node(request),
        alone="exclusive" in request.settings,
        whole_nodes="exclusive" in request.settings and request.value("exclusive") is None,
        share=shares[0].resource if shares else None,
        least_units=shares[0].amount if shares and shares[0].resource == "mps" else 1,
    )


def _is_share_of(option: GpuOption, asked: GpuRequest, site: Site) -> bool:
    """Whether a request for shares means this option; Slurm types a share as its GPU."""
    if option.share is None or option.share.kind != asked.resource:
        return False
    return asked.type in (None, option.type, site.option[option.share.of].type)


def _memory_per_node(request: Request) -> int:
    """Return the host memory that the request wants of a node, in bytes; 0 where it leaves that to the site."""
    amounts = {setting.name: gres.parse_memory(setting.value or "0") for setting in request.memory}
    per_gpu = amounts.get("mem-per-gpu", 0) * (request.gpus_per_node or 1)
    return amounts.get("mem", 0) or amounts.get("mem-per-cpu", 0) * request.cpus_per_node or per_gpu


@dataclass
class _Estimates:
    """What the dry runs say of one component. `sure` is the option that it is meant for.

    Where the component fails there, too, the fault is the job's.
    """

    dry_runs: "_DryRuns"
    component: int
    sure: str
    results: dict[tuple[str, int], Estimate | NoEstimate] = field(default_factory=dict)
    arch_list: Sequence[str] = ()
    """What the job's torch has kernels for, once that was seen."""
    no_share: str = ""
    """Why it was given no share of a GPU on which it fits."""

    def has_kernels(self, name: str) -> bool:
        """Whether the job's torch runs on the GPU of option `name`, as far as is known."""
        return kernels.run_on(self.arch_list, self.dry_runs.gpus[name].capability)

    def on(self, name: str) -> Estimate:
        """Return the estimate on the GPU of option `name`, from a dry run of its kind."""
        kind = self.dry_runs.kind(name)
        if kind not in self.results:
            self.results[kind] = self._estimate(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def fits(self, name: str) -> bool:
        """Whether the component fits option `name`; on a kind of GPU not tried yet, by a dry run if that could succeed.

        It is not tried where the component does not fit by the traces at hand, or where the budget has no room for
        another run; and it does not fit where that run fails, as that of a torch that was not built for the GPU does.
        The next option is dearer, never too small. A script that stops by itself is told at once.
        """
        gpu = self.dry_runs.gpus[name]
        if not self.has_kernels(name):
            return False
        if self.dry_runs.kind(name) not in self.results:
            known = [result for result in self.results.values() if isinstance(result, Estimate)]
            if known and not any(estimate.fits(gpu) for estimate in known):
                return False
            if not self.dry_runs.has_room_for(name):
                return False
        try:
            return self.on(name).fits(gpu)
        except NoEstimate as error:
            if error.on_any_gpu:
                raise
            if self.has_kernels(name) and self.has_kernels(self.sure):
                self.on(self.sure)
            return False

    def _estimate(self, name: str) -> Estimate | NoEstimate:
        try:
            traces = self.dry_runs.on(name)
        except NoEstimate as error:
            return error
        own = [trace for trace in traces if trace.component == self.component]
        self.arch_list = next((trace.arch_list for trace in own if trace.arch_list), self.arch_list)
        files = [file for trace in traces for file in trace.files]
        if len(own) < len(traces) and not any(trace.allocations or trace.error for trace in own):
            return NoEstimate("no process of its own used GPU memory in the dry run", files, on_any_gpu=True)
        if not self.has_kernels(name):
            return NoEstimate(_without_kernels(name, self.dry_runs.gpus[name], self.arch_list), files)
        try:
            return estimate(own, name, self.dry_runs.gpus[name])
        except NoEstimate as error:
            return NoEstimate(str(error), files, on_any_gpu=fail_on_any_gpu(own))


@dataclass
class _DryRuns:
    """The dry runs of one job: one for each kind of GPU, and one budget for all of them.

    What a job allocates depends on the GPU (attention kernels, library workspaces, what the job reads of it), so a
    trace speaks for the GPUs of its own compute capability and number of multiprocessors only. All components of a job
    are shown the same kind at a time.
    """

    order: DryRunOrder
    """What is common to them; its budget is for all."""
    gpus: Mapping[str, Gpu]
    where: DryRuns
    began: spending.Moment = field(default_factory=spending.now)
    longest: spending.Moment = field(default=spending.Moment(0.0, 0.0))
    results: dict[tuple[str, int], Sequence[Trace] | NoEstimate] = field(default_factory=dict)

    def on(self, name: str) -> Sequence[Trace]:
        """Return the traces of the job on GPUs of the kind that option `name` has."""
        kind = self.kind(name)
        if kind not in self.results:
            self.results[kind] = self._run(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def has_room_for(self, name: str) -> bool:
        """Whether the job was run on this kind of GPU, or can be within the budget."""
        return self.kind(name) in self.results or self.order.budget.since(self.began).has_room_for(self.longest)

    def kind(self, name: str) -> tuple[str, int]:
        """Return what GPUs have in common for which one trace speaks."""
        gpu = self.gpus[name]
        return gpu.capability, gpu.multiprocessors

    def _run(self, name: str) -> Sequence[Trace] | NoEstimate:
        started = spending.now()
        try:
            traces: list[Trace] = []
            job = self.order.job
            for each in [job.as_task(task) for task in _tasks_of_array(self.order)] or [job]:
                left = self.order.budget.since(self.began)
                traces += ranks.run(replace(self.order, job=each, gpu=self.gpus[name], budget=left), self.where)
                if fail_on_any_gpu(traces):
                    break
            self.order = ranks.with_others(self.order, traces) or self.order
            return [_with_array(trace, self.order) for trace in traces]
        except NoEstimate as error:
            return error
        finally:
            self.longest = max(self.longest, spending.now().since(started))


def _tasks_of_array(order: DryRunOrder) -> Sequence[int]:
    """Return the tasks of an array that are run: those that are asked for, else the ends of it.

    The first and the last, as sweeps grow; the larger counts. None of a job that is no array.
    """
    environ = order.job.environ
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return []
    ends = [int(environ[f"SLURM_ARRAY_TASK_{end}"]) for end in ("MIN", "MAX")]
    return order.array_tasks or list(dict.fromkeys(ends))


def _with_array(trace: Trace, order: DryRunOrder) -> Trace:
    """Say so in the trace if it stands for tasks of an array that were not run."""
    ran, count = _tasks_of_array(order), int(order.job.environ.get("SLURM_ARRAY_TASK_COUNT") or 0)
    if count <= len(ran):
        return trace
    noted = Noted(Doubt.ARRAY, f"of the array's {count} tasks only {' and '.join(map(str, ran))} ran", count - len(ran))
    return replace(trace, doubts=[*trace.doubts, noted])
