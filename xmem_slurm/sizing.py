"""Decide which GPU option a job needs: dry run, estimate, placement, and again where another kind of GPU is in question."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from xmem_slurm.dryrun import runner
from xmem_slurm.estimate import Estimate, estimate
from xmem_slurm.placement import Demand, Placement, candidates, place
from xmem_slurm.site.schema import Gpu, Site


@dataclass(frozen=True)
class Sizing:
    """What a job needs. `estimate` is for the chosen option's GPU; without a choice, for the GPU asked for."""

    estimate: Estimate
    placement: Placement
    seconds: float


def size(job: runner.Job, demand: Demand, site: Site, gpus: Mapping[str, Gpu], budget: runner.Budget) -> Sizing:
    """Run `job` dry on the GPU that it asks for, or else the largest, and find the cheapest option on which it fits.

    Raises:
        XmemError: as `runner.run` and `estimate.estimate` do.
    """
    started = time.monotonic()
    open_to = candidates(demand, site, gpus) or list(gpus)
    first = demand.option or max(open_to, key=lambda name: gpus[name].total_bytes)
    dry_runs = _DryRuns(job, gpus, budget)
    asked = dry_runs.on(first)
    placement = place(demand, site, gpus, dry_runs.fits)
    chosen = asked if placement.choice is None else dry_runs.on(placement.choice)
    return Sizing(chosen, placement, time.monotonic() - started)


@dataclass
class _DryRuns:
    """The dry runs of one job: one for each kind of GPU, and one budget for all of them.

    What a job allocates depends on the GPU (attention kernels, library workspaces, what the job reads of it), so a
    trace speaks for the GPUs of its own compute capability and number of multiprocessors only.
    """

    job: runner.Job
    gpus: Mapping[str, Gpu]
    budget: runner.Budget
    spent: float = 0.0
    longest: float = 0.0
    estimates: dict[tuple[str, int], Estimate] = field(default_factory=dict)

    def on(self, name: str) -> Estimate:
        """Return the estimate on the GPU of option `name`, from a dry run of its kind."""
        kind = self._kind(name)
        if kind not in self.estimates:
            started = time.monotonic()
            run = runner.run(self.job, self.gpus[name], self.budget.less(self.spent))
            seconds = time.monotonic() - started
            self.spent += seconds
            self.longest = max(self.longest, seconds)
            self.estimates[kind] = estimate(run.traces, name, self.gpus[name])
        return self.estimates[kind]

    def fits(self, name: str) -> bool:
        """Whether the job fits option `name`; on a kind of GPU not tried yet, by a dry run if that could succeed.

        It is not tried where the job does not fit by the traces at hand, or where the budget has no room for another
        run: the next option is dearer, never too small.
        """
        gpu = self.gpus[name]
        if self._kind(name) not in self.estimates and (
            not any(known.fits(gpu) for known in self.estimates.values())
            or self.spent + self.longest > self.budget.seconds
        ):
            return False
        return self.on(name).fits(gpu)

    def _kind(self, name: str) -> tuple[str, int]:
        gpu = self.gpus[name]
        return gpu.capability, gpu.multiprocessors
