"""Of each GPU option: does the job fit, with how much to spare, where does it fail, and what would
make it fit?

All by replay. Where an option was not tried because a better one fits, the trace at hand speaks for
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.replay import OutOfMemory, Replay
from xmem_slurm.report.timeline import phase_of
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import kernels
from xmem_slurm.sizing.dry_runs import without_kernels
from xmem_slurm.sizing.estimate import Estimate, RankEstimate
from xmem_slurm.sizing.placement import Verdict
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.trace import Trace

EXPANDABLE = "expandable_segments:True"
"""The setting of PYTORCH_CUDA_ALLOC_CONF that keeps free memory in one piece; it changes no value
that is computed."""
_NO_TIME = "no time was left in the budget to try it (a larger --xmem-budget has it)"


@dataclass(frozen=True, slots=True)
class Failure:
    """The first request that an option cannot serve: bytes asked for, bytes allocated then, and
    when that is.

    `event` is its place in the events of that rank's trace.
    """

    rank: int
    event: int
    requested_bytes: int
    allocated_bytes: int
    phase: str


@dataclass(frozen=True, slots=True)
class OptionOutlook:
    """One option. `allocator_bytes` is what torch's allocator can have there, context and margin
    taken off.

    `fits` is the placement's verdict, None where it was not tried. `headroom_bytes` is what the
    option has beyond the need, and 0 where the job runs on a little less than that. `failure` is
    None where the trace at hand runs to its end; `short_steps` then are those that repeat an
    earlier one and lack memory, of `repeated_steps` that do so, where they are too many: 0 where
    the job runs well. `without_kernels` is why its torch cannot run there, `not_taken` why it was
    not chosen though the job fits.
    """

    name: str
    gpu: Gpu
    fits: bool | None
    chosen: bool
    allocator_bytes: int
    headroom_bytes: int
    failure: Failure | None
    short_steps: int = 0
    repeated_steps: int = 0
    without_kernels: str = ""
    not_taken: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Whether the allocator setting `setting` makes the next smaller option enough; replayed."""

    option: str
    setting: str
    enough: bool


def outlooks(sizing: Sizing) -> list[OptionOutlook]:
    """Return every option of the placement, in its order."""
    return [_outlook(sizing, verdict) for verdict in sizing.placement.verdicts]


def remedy(sizing: Sizing) -> Remedy | None:
    """Try `EXPANDABLE` on the next smaller option, the largest where none fits; None where there is
    nothing to try.

    That is so where no whole GPU is too small, and where a rank has the setting already.
    """
    nearest, ranks = sizing.placement.too_small, sizing.estimate.ranks
    if nearest is None:
        return None
    if any(_is_expandable(rank.trace) for rank in ranks) or sizing.estimate.fits(nearest.gpu):
        return None
    enough = all(rank.failure_on(nearest.gpu, EXPANDABLE) is None for rank in ranks)
    return Remedy(nearest.name, EXPANDABLE, enough)


def _outlook(sizing: Sizing, verdict: Verdict) -> OptionOutlook:
    """Return what is known of an option; by another replay only where the need alone does not
    tell.
    """
    estimate = sizing.estimate
    allocator_bytes = estimate.largest.capacity_on(verdict.job_gpu)
    headroom = estimate.largest.headroom_on(verdict.job_gpu)
    chosen = verdict.name == sizing.placement.choice
    outlook = OptionOutlook(
        verdict.name, verdict.job_gpu, verdict.fits, chosen, allocator_bytes, headroom, None
    )
    arch_list = estimate.largest.trace.arch_list
    if verdict.fits is False and not kernels.run_on(arch_list, verdict.job_gpu.capability):
        return replace(
            outlook, without_kernels=without_kernels(verdict.name, verdict.job_gpu, arch_list)
        )
    if verdict.name in sizing.untried:
        return replace(outlook, not_taken=_NO_TIME)
    if verdict.fits is False and sizing.no_smaller and estimate.fits(verdict.job_gpu):
        return replace(outlook, headroom_bytes=max(0, headroom), not_taken=sizing.no_smaller)
    # A replay that ends well takes its full time; with room for the need, or a verdict by its own
    # dry run, it is known.
    is_known = headroom >= 0 or verdict.fits
    failed = None if is_known else next(_failures(estimate, verdict.job_gpu), None)
    if failed is None:
        return replace(outlook, headroom_bytes=max(0, headroom))
    rank, how = failed
    if how.oom is None:
        return replace(outlook, short_steps=how.short_steps, repeated_steps=how.repeated_steps)
    return replace(outlook, failure=_failure(rank, how.oom))


def _failures(estimate: Estimate, gpu: Gpu) -> Iterator[tuple[RankEstimate, Replay]]:
    for rank in estimate.ranks:
        how = rank.failure_on(gpu)
        if how is not None:
            yield rank, how


def _failure(rank: RankEstimate, oom: OutOfMemory) -> Failure:
    live = sum(oom.allocated_bytes.values())
    return Failure(
        rank.trace.rank, oom.event, oom.requested_bytes, live, phase_of(rank.trace, oom.allocation)
    )


def _is_expandable(trace: Trace) -> bool:
    return parse(trace.allocator_settings, trace.torch_version).expandable_segments
