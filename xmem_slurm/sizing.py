"""Decide which GPU option a job needs: dry run, estimate, placement, and again for each kind of GPU in question."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xmem_slurm import engines
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.job import Job, from_submission
from xmem_slurm.errors import NoEstimate
from xmem_slurm.estimate import Estimate, estimate
from xmem_slurm.placement import Demand, Placement, Verdict, candidates, place, unit_bytes
from xmem_slurm.sharing import is_held
from xmem_slurm.site.schema import Gpu, Option, Site
from xmem_slurm.slurm import edit, gres
from xmem_slurm.slurm.request import GpuRequest, Request
from xmem_slurm.trace import Doubt, Trace


@dataclass(frozen=True)
class Sizing:
    """What a job needs. `estimate` is for the chosen option's GPU; without a choice, for the largest."""

    estimate: Estimate
    placement: Placement
    seconds: float


def size(
    job: edit.Job,
    site: Site,
    gpus: Mapping[str, Gpu],
    budget: runner.Budget,
    starts: Callable[[Sequence[str]], Mapping[str, float]] = lambda names: {},
) -> Sizing:
    """Find the best GPU option of the site on which `job` fits, by the site's own order.

    The job is shown GPUs smaller by what the site's policy wants spared. `starts` says when each of these options would
    be free, in seconds since the epoch; it is asked where the site ranks by that.

    Raises:
        NoEstimate: the job asks for shares, and the site lets none of that kind be changed.
        XmemError: as `runner.run` and `estimate.estimate` do, where the job fails on the GPU that it asks for, too.
    """
    started = time.monotonic()
    demand = demand_of(job.request(), site)
    kept = 1 - site.policy.spare
    gpus = {n: gpu.model_copy(update={"total_bytes": int(gpu.total_bytes * kept)}) for n, gpu in gpus.items()}
    names = candidates(demand, site, gpus)
    if demand.share is not None and not names:
        raise NoEstimate(f"the site file has no {demand.share} that this job could be given another number of")
    largest = max(names or gpus, key=lambda name: gpus[name].total_bytes)
    dry_runs = _DryRuns(from_submission(job), gpus, budget, demand.option or largest)
    known = starts(names) if site.policy.order == "start" else {}
    placement = place(demand, site, gpus, lambda name: _units(name, demand, site, dry_runs), known)
    return Sizing(dry_runs.on(placement.choice or largest), placement, time.monotonic() - started)


def _units(name: str, demand: Demand, site: Site, dry_runs: "_DryRuns") -> int:
    """Return how many units of an option the job needs: 1 for a whole GPU, 0 where it does not fit.

    A share must hold the whole peak, and something must hold the job to its share: neighbours have the rest. The limits
    are for one process each.
    """
    if not dry_runs.fits(name):
        return 0
    option, found = site.option[name], dry_runs.on(name)
    if option.share is None:
        return 1
    if len(found.ranks) > 1 or not is_held(option, found.largest.trace.torch_version, dry_runs.job.environ):
        return 0
    needed = -(-found.required_bytes // unit_bytes(name, site, dry_runs.gpus))
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
    cpus = (request.cpus_per_task or 1) * max(1, request.ntasks // (request.nodes or 1))
    return Demand(
        gpus_per_node=request.gpus_per_node or 1,
        option=named[0] if len(named) == 1 else None,
        partitions=request.partitions,
        constraint=request.constraint,
        gpus_total=request.gpus_total or 1,
        nodes=request.nodes or 1,
        cpus_per_node=cpus,
        memory_bytes=_memory_per_node(request, cpus),
        share=shares[0].resource if shares else None,
        least_units=shares[0].amount if shares and shares[0].resource == "mps" else 1,
    )


def _is_share_of(option: Option, asked: GpuRequest, site: Site) -> bool:
    """Whether a request for shares means this option; Slurm types a share as its GPU."""
    if option.share is None or option.share.kind != asked.resource:
        return False
    return asked.type in (None, option.type, site.option[option.share.of].type)


def _memory_per_node(request: Request, cpus: int) -> int:
    """Return the host memory that the request wants of a node, in bytes; 0 where it leaves that to the site."""
    amounts = {setting.name: gres.parse_memory(setting.value or "0") for setting in request.memory}
    per_gpu = amounts.get("mem-per-gpu", 0) * (request.gpus_per_node or 1)
    return amounts.get("mem", 0) or amounts.get("mem-per-cpu", 0) * cpus or per_gpu


def on_one(job: edit.Job, name: str, gpu: Gpu, budget: runner.Budget) -> Sizing:
    """Run `job` dry on one GPU, with no site to choose from.

    Raises:
        XmemError: as `runner.run` and `estimate.estimate` do.
    """
    started = time.monotonic()
    found = estimate(engines.run(from_submission(job), gpu, budget), name, gpu)
    verdict = Verdict(name, gpu, found.fits(gpu))
    return Sizing(found, Placement([verdict], name if verdict.fits else None), time.monotonic() - started)


@dataclass
class _DryRuns:
    """The dry runs of one job: one for each kind of GPU, and one budget for all of them.

    What a job allocates depends on the GPU (attention kernels, library workspaces, what the job reads of it), so a
    trace speaks for the GPUs of its own compute capability and number of multiprocessors only. `sure` is the option on
    which the job is meant to run: where it fails there, too, the fault is the job's.
    """

    job: Job
    gpus: Mapping[str, Gpu]
    budget: runner.Budget
    sure: str
    spent: float = 0.0
    longest: float = 0.0
    results: dict[tuple[str, int], Estimate | NoEstimate] = field(default_factory=dict)

    def on(self, name: str) -> Estimate:
        """Return the estimate on the GPU of option `name`, from a dry run of its kind."""
        kind = self._kind(name)
        if kind not in self.results:
            self.results[kind] = self._run(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def fits(self, name: str) -> bool:
        """Whether the job fits option `name`; on a kind of GPU not tried yet, by a dry run if that could succeed.

        It is not tried where the job does not fit by the traces at hand, or where the budget has no room for another
        run; and it does not fit where that run fails, as that of a torch that was not built for the GPU does. The next
        option is dearer, never too small.
        """
        gpu = self.gpus[name]
        if self._kind(name) not in self.results:
            known = [result for result in self.results.values() if isinstance(result, Estimate)]
            if known and not any(estimate.fits(gpu) for estimate in known):
                return False
            if self.spent + self.longest > self.budget.seconds:
                return False
        try:
            return self.on(name).fits(gpu)
        except NoEstimate:
            self.on(self.sure)
            return False

    def _run(self, name: str) -> Estimate | NoEstimate:
        started = time.monotonic()
        try:
            traces: list[Trace] = []
            for job in _ends_of_array(self.job):
                left = self.budget.less(self.spent + time.monotonic() - started)
                traces += engines.run(job, self.gpus[name], left)
            return estimate([_with_array(trace, self.job) for trace in traces], name, self.gpus[name])
        except NoEstimate as error:
            return error
        finally:
            seconds = time.monotonic() - started
            self.spent += seconds
            self.longest = max(self.longest, seconds)

    def _kind(self, name: str) -> tuple[str, int]:
        gpu = self.gpus[name]
        return gpu.capability, gpu.multiprocessors


def _ends_of_array(job: Job) -> list[Job]:
    """Return what is run for a job: of an array the first and the last task, as sweeps grow; the larger counts."""
    last = job.environ.get("SLURM_ARRAY_TASK_MAX")
    if last is None or last == job.environ["SLURM_ARRAY_TASK_ID"]:
        return [job]
    return [job, replace(job, environ={**job.environ, "SLURM_ARRAY_TASK_ID": last})]


def _with_array(trace: Trace, job: Job) -> Trace:
    """Say so in the trace if it stands for tasks of an array that were not run."""
    count = int(job.environ.get("SLURM_ARRAY_TASK_COUNT") or 1)
    if count <= len(_ends_of_array(job)):
        return trace
    return replace(trace, doubts=[*trace.doubts, Doubt("array", "tasks of the array that were not run", count - 2)])
