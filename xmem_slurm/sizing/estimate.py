"""From traces to bytes: how much GPU memory a job needs, what it is made of, and how sure that is.

What a GPU must hold is the least memory for torch's allocator that is enough for the job
(`allocator.fit`), what the process holds outside it (CUDA context, loaded kernels: the catalogue's
figure for that GPU), and a margin for what the dry run could not see. Whether a job fits a GPU is a
replay of its trace against that GPU's capacity, by the same rule, not a comparison with the peak:
under pressure the allocator frees its cache and tries again. Left alone it reserves more: where
batches differ in shape, many times what the job needs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType

from xmem_slurm.allocator.addresses import GRANULARITY
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.fit import room_for_bounds, smallest_capacity
from xmem_slurm.allocator.replay import Replay, replay
from xmem_slurm.allocator.sizes import ROUND_LARGE
from xmem_slurm.doubts import NO_ESTIMATE, NOT_SEEN, Doubt
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import margins, nccl
from xmem_slurm.sizing.margins import NO_EXPERIENCE, Experience, Margin
from xmem_slurm.trace import Category, Noted, Trace, cannot_run
from xmem_slurm.units import MIB, round_up


@dataclass(frozen=True)
class RankEstimate:
    """One process of the job. Sizes in bytes; `breakdown` is what was allocated when the most
    was.
    """

    trace: Trace
    replay: Replay
    """Without a limit."""
    fits_in_bytes: int
    """The least that torch's allocator must be able to have (`smallest_capacity`), whatever
    libraries choose."""
    margin: Margin
    margin_bytes: int
    outside_allocator_bytes: int
    doubts: Sequence[Noted]
    """Everything that the dry run could not see."""
    bound_bytes: int = 0
    """Of `fits_in_bytes`: what is there in case libraries choose what takes the most
    (`Trace.bounds`), and what may be freed later than it was here."""
    beside_bytes: int = 0
    """Of what lies outside its allocator: what other processes of the job need on the same GPU at
    the same time."""

    @property
    def required_bytes(self) -> int:
        """What a GPU must have for this process, margin included."""
        return self.fits_in_bytes + self.outside_allocator_bytes + self.margin_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """What torch's allocator reserves where there is room for everything.

        Steps that are left out of the trace filled its cache, too, and left it with other holes:
        torch's own peak has them, unless the dry run has added to the trace, by which more is asked
        for than torch ever was. Where calls were skipped, torch's own peak is that of a process
        that made half of its steps, which no job is.
        """
        recorded, progress = self.trace.recorded, self.trace.seen
        if progress is not None and progress.skipped:
            return self.replay.peak_reserved_bytes
        if self.replay.peak_requested_bytes <= recorded.get("requested_bytes", 0):
            return recorded["reserved_bytes"]
        return max(self.replay.peak_reserved_bytes, recorded.get("reserved_bytes", 0))

    @property
    def uses_up_to_bytes(self) -> int:
        """What is taken, with this process at its peak, of a GPU that has room for everything."""
        return self.peak_reserved_bytes + self.outside_allocator_bytes

    def failure_on(self, gpu: Gpu, setting: str = "") -> Replay | None:
        """Return how the process fails on `gpu` with its margin to spare; None where it runs well.

        `setting` is one of the allocator that is put behind the job's own.
        """
        settings = parse(
            ",".join(filter(None, [self.trace.allocator_settings, setting])),
            self.trace.torch_version,
        )
        run = replay(self.trace, self.capacity_on(gpu), settings)
        if run.suffices and self.trace.bounds:
            at_most = replay(self.trace, self.capacity_on(gpu), settings, at_most=True)
            return None if at_most.fits else at_most
        return None if run.suffices else run

    @property
    def breakdown(self) -> Mapping[Category, int]:
        """Bytes by category at the peak."""
        return self.replay.at_peak_allocated.allocated_bytes

    def capacity_on(self, gpu: Gpu) -> int:
        """Bytes that torch's allocator can have on `gpu` if the margin must stay free."""
        kept = self.margin_bytes + self.beside_bytes + _freed_late(self.trace)
        return capacity_for(gpu, kept + nccl.taken(self.trace, gpu)[0])

    def headroom_on(self, gpu: Gpu) -> int:
        """Bytes that `gpu` has beyond the need; what may be freed late is in it once, not twice."""
        return self.capacity_on(gpu) + _freed_late(self.trace) - self.fits_in_bytes


@dataclass(frozen=True)
class Estimate:
    """What one dry run says about a job on the GPU named `gpu_name`."""

    gpu_name: str
    ranks: Sequence[RankEstimate]

    @cached_property
    def largest(self) -> RankEstimate:
        """The rank that needs the most: it decides."""
        return max(self.ranks, key=lambda rank: rank.required_bytes)

    @property
    def required_bytes(self) -> int:
        """What each GPU of the job must have."""
        return self.largest.required_bytes

    @property
    def uses_up_to_bytes(self) -> int:
        """What the job takes of a GPU that has room for everything."""
        return max(rank.uses_up_to_bytes for rank in self.ranks)

    @property
    def uses_more(self) -> bool:
        """Whether a job left alone takes more than it is said to need, as its user will see; less
        is the margin's.
        """
        return self.uses_up_to_bytes > self.required_bytes

    @property
    def doubts(self) -> Sequence[Noted]:
        """Everything that the dry run could not see, over all ranks."""
        return [noted for rank in self.ranks for noted in rank.doubts]

    @property
    def asks_for_script(self) -> bool:
        """Whether the job asked Slurm for the path of its own script."""
        return any(rank.trace.has(Doubt.OWN_SCRIPT) for rank in self.ranks)

    @property
    def engine(self) -> str:
        """How the job was run (`engine_of`)."""
        return engine_of(self.largest.trace)

    @property
    def reasons(self) -> Sequence[str]:
        """Why the margin is wider than the least, and what was not run, one line each."""
        reasons = [_sentence(noted) for noted in self.doubts if noted.doubt.price is not None]
        reasons += _others_not_run([rank.trace for rank in self.ranks])
        if self.largest.beside_bytes:
            reasons.append("processes that ran at once on one GPU are added up")
        promise = self.largest.margin.probability
        if promise is not None and promise < margins.LEAST_PROMISE:
            reasons.append(
                f"that margin is enough for less than {margins.LEAST_PROMISE:.0%} of such jobs"
            )
        return list(dict.fromkeys(reasons))

    @property
    def first_reason(self) -> str:
        """The reason that may cost the most, without what follows from it: what a job does unseen,
        else the dearest.
        """
        wider = [
            noted
            for noted in self.doubts
            if noted.doubt.price is not None and noted.doubt is not Doubt.SET_UP
        ]
        unseen = [noted for code in NOT_SEEN for noted in wider if noted.doubt is code]
        by_price = sorted(wider, key=lambda noted: -(noted.share or noted.doubt.price or 0.0))
        words = [_sentence(noted) for noted in (unseen or by_price)[:1]] or self.reasons[:1]
        return re.split(r"[:;] ", words[0])[0] if words else ""

    @property
    def confidence(self) -> str:
        """Say "high" where nothing is known to be missing, else "medium"; "low" is a NoEstimate.

        Something may be missing wherever the script's own end was not reached (`not-reached`).
        """
        return "medium" if self.reasons else "high"

    def fits(self, gpu: Gpu) -> bool:
        """Whether every rank runs to its end on `gpu`, with its margin to spare, and does not live
        on retries.
        """
        return all(rank.failure_on(gpu) is None for rank in self.ranks)


def margin_of(
    doubts: Iterable[Doubt], capability: str, prices: Mapping[Doubt, float] = MappingProxyType({})
) -> Margin:
    """Return the margin of a run with these doubts on a GPU of this compute capability.

    Doubts that change no size do not count. `prices` has the price of those whose price follows
    from what was seen.
    """
    priors = {
        doubt.code: max(doubt.price, prices.get(doubt, 0))
        for doubt in doubts
        if doubt.price is not None
    }
    return margins.margin(priors.keys(), capability, priors)


def margin_bytes(margin: Margin, allocator_bytes: int) -> int:
    """Return a margin in bytes, in whole pages of the GPU."""
    return round_up(int(margin.share * allocator_bytes), 2 * MIB)


def capacity_for(gpu: Gpu, kept_bytes: int) -> int:
    """Bytes that torch's allocator can have on `gpu` if `kept_bytes` must stay free beside the CUDA
    context.
    """
    return max(0, gpu.total_bytes - gpu.context_bytes - kept_bytes)


def estimate(
    traces: Sequence[Trace], gpu_name: str, gpu: Gpu, experience: Experience = NO_EXPERIENCE
) -> Estimate:
    """Estimate a job from the traces of one dry run on `gpu`, and from what earlier jobs showed.

    Processes that used no GPU memory (launchers, data loaders) do not count; but a rank of which no
    process did, as it failed before, leaves no estimate.

    Raises:
        NoEstimate: no process used GPU memory, or one ended too early to be trusted; says why.
    """
    used = {(trace.component, trace.rank) for trace in traces if trace.allocations}
    for trace in traces:
        if used and trace.failed and (trace.component, trace.rank) not in used:
            words = f"rank {trace.rank} of {trace.world_size} stopped with {trace.error}"
            raise NoEstimate(words, fails=cannot_run(words))
    ranks = [_rank(trace, gpu, experience) for trace in traces if trace.allocations]
    if not ranks:
        # a launcher ends after its workers
        failed = [(trace.lived[1], trace.failure) for trace in traces if trace.failure]
        if not failed:
            raise NoEstimate("no process used GPU memory")
        failure = min(failed, key=itemgetter(0))[1]
        stopped = "the script stopped with " if failure.type else ""  # else it is of ours
        raise NoEstimate(f"{stopped}{failure.words}{_after_set_up(traces)}")
    return Estimate(gpu_name, [_among(rank, ranks) for rank in ranks])


_BUCKET_BYTES = 25 * MIB
"""Gradients in one of DDP's buckets (`bucket_cap_mb`, torch/nn/parallel/distributed.py, 2.4 to
2.15)..."""
_EDGE_BYTES = 20 * MIB
"""...and the segment of one with less than 10 MiB, as the first and the last may be (kLargeBuffer
in c10/cuda/CUDACachingAllocator.cpp)."""


def _freed_late(trace: Trace) -> int:
    """Return the bytes that were free here when others were asked for, and may not be on a GPU:
    DDP's first buckets.

    Each is a segment of its own, of whole pages.
    """
    gradients = sum(noted.count for noted in trace.doubts if noted.doubt is Doubt.DDP_BUCKETS)
    if not gradients:
        return 0
    return round_up(
        gradients + gradients // _BUCKET_BYTES * ROUND_LARGE + 2 * _EDGE_BYTES, GRANULARITY
    )


def _among(rank: RankEstimate, ranks: Sequence[RankEstimate]) -> RankEstimate:
    """Add what was beside a process. Which of them peak together is not known: each is taken at its
    peak.
    """
    beside_bytes = [
        other_rank.required_bytes
        for other_rank in ranks
        if other_rank is not rank and other_rank.trace.beside(rank.trace)
    ]
    outside = rank.outside_allocator_bytes + sum(beside_bytes)
    return replace(rank, outside_allocator_bytes=outside, beside_bytes=sum(beside_bytes))


def _rank(trace: Trace, gpu: Gpu, experience: Experience) -> RankEstimate:
    """Estimate one process.

    Raises:
        NoEstimate: it ended too early to be trusted, or has a doubt that leaves none.
    """
    if trace.failed:
        raise NoEstimate(f"the script stopped after {_steps(trace)} with {trace.error}")
    if trace.growing and trace.steps < 2 and not _has_no_optimizer(trace):
        raise NoEstimate(
            f"only {_steps(trace)} within the time budget; a larger --xmem-budget gives it more"
        )
    for noted in trace.doubts:
        if noted.doubt in NO_ESTIMATE:
            raise NoEstimate(_sentence(noted))
    unlimited = replay(trace)
    nccl_bytes, nccl_known = nccl.taken(trace, gpu)
    doubts = [noted for noted in _doubts(trace) if not (nccl_known and noted.doubt is Doubt.NCCL)]
    as_seen = smallest_capacity(trace, unlimited)
    fits_in = room_for_bounds(trace, as_seen) + _freed_late(trace)
    margin = _margin(doubts, engine_of(trace), gpu, experience)
    if experience.ran_out is not None:
        ran_out = Noted(
            Doubt.RAN_OUT, experience.ran_out.words, share=experience.ran_out.share_of(fits_in)
        )
        doubts.append(ran_out)
        margin = max(margin, Margin(ran_out.share or 0.0), key=lambda candidate: candidate.share)
    kept = margin_bytes(margin, fits_in)
    outside = gpu.context_bytes + nccl_bytes
    return RankEstimate(trace, unlimited, fits_in, margin, kept, outside, doubts, fits_in - as_seen)


def _margin(doubts: Sequence[Noted], engine: str, gpu: Gpu, experience: Experience) -> Margin:
    """Return the margin of jobs like this one, unless a price of its own is more; else of what was
    measured.

    Where so many of them ran out of memory that little can be promised, it is no less than what was
    measured.
    """
    prices = {noted.doubt: noted.share for noted in doubts if noted.share is not None}
    priced = frozenset(noted.code for noted in doubts if noted.doubt.price is not None)
    learned = experience.of(engine, gpu.cuda_name, priced)
    measured = margin_of([noted.doubt for noted in doubts], gpu.capability, prices)
    if learned is None or learned.share < max(prices.values(), default=0):
        return measured
    if learned.probability is not None and learned.probability < margins.LEAST_PROMISE:
        return replace(learned, share=max(learned.share, measured.share))
    return learned


def engine_of(trace: Trace) -> str:
    """Return how a job was run: "device", on stand-in CUDA libraries, or "profile", for real on the
    CPU.
    """
    return "profile" if trace.has(Doubt.PROFILE_ENGINE) else "device"


def _doubts(trace: Trace) -> list[Noted]:
    noted = [*trace.doubts]
    if trace.growing:
        noted.append(Noted(Doubt.GROWING, f"ended by {trace.state} after {_steps(trace)}"))
    if trace.error is not None:
        noted.append(Noted(Doubt.STOPPED, trace.error))
    return noted


def _sentence(noted: Noted) -> str:
    return noted.doubt.sentence.format(detail=noted.detail)


def _after_set_up(traces: Sequence[Trace]) -> str:
    """Say which line had failed by then that sets up what a script needs: it may be why."""
    details = [
        noted.detail for trace in traces for noted in trace.doubts if noted.doubt is Doubt.SET_UP
    ]
    return f"; before that failed {details[0]}" if details else ""


def _has_no_optimizer(trace: Trace) -> bool:
    """Whether the script trains without an optimizer, so that there are no steps to wait for.

    Without a backward pass it may as well be a script that has not come to its training yet.
    """
    trains = sum(mark.kind == "backward" for mark in trace.marks) >= 2
    return trains and trace.has(Doubt.NO_OPTIMIZER)


def _others_not_run(traces: Sequence[Trace]) -> list[str]:
    """Say of each world of ranks which of them stand for all."""
    worlds = {trace.world_size: set[int]() for trace in traces if trace.world_size > 1}
    for trace in traces:
        worlds.get(trace.world_size, set()).add(trace.rank)
    alike = {trace.world_size for trace in traces if trace.has(Doubt.RANKS_ALIKE)}
    return [
        _ran(sorted(ranks), size)
        for size, ranks in worlds.items()
        if len(ranks) < size and size not in alike
    ]


def _ran(ranks: Sequence[int], size: int) -> str:
    if len(ranks) == 1:
        return f"only rank {ranks[0]} of {size} was run and stands for all"
    return f"of {size} ranks {', '.join(map(str, ranks))} were run; the largest stands for all"


def _steps(trace: Trace) -> str:
    return f"{trace.steps} optimizer step{'' if trace.steps == 1 else 's'}"
