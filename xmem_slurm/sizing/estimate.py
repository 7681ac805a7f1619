"""From traces to bytes: how much GPU memory a job needs, what it is made of, and how sure that is.

What a GPU must hold is the least memory for torch's allocator that is enough for the job (`allocator.fit`), what the
process holds outside it (CUDA context, loaded kernels: the catalogue's figure for that GPU), and a margin for what the
dry run could not see. Whether a job fits a GPU is a replay of its trace against that GPU's capacity, by the same rule,
not a comparison with the peak: under pressure the allocator frees its cache and tries again. Left alone it reserves
more: where batches differ in shape, many times what the job needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from xmem_slurm.allocator.fit import smallest_capacity
from xmem_slurm.allocator.replay import Replay, replay
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import margins
from xmem_slurm.sizing.margins import Margin
from xmem_slurm.trace import OWN_SCRIPT, Category, Doubt, Trace
from xmem_slurm.units import MIB, round_up

BASE_MARGIN = 0.02
"""The least prior, for doubts that by themselves change no size."""

_NOT_MEASURED = "no measurements yet"

MARGINS: Mapping[str, tuple[float, str]] = {
    "cudnn-plan": (0.20, "cuDNN chooses its plans and their workspace on the GPU"),
    "cudnn-described": (0.05, "plans are those of the job's own {detail}, not yet compared with a GPU's"),
    "cudnn-benchmark": (0.10, "cudnn.benchmark keeps the fastest plan, which only a GPU can tell"),
    "cudnn-batchnorm": (0.10, "cuDNN's batch norm keeps reserve space of a size it does not publish"),
    "cudnn-rnn": (0.10, f"cuDNN's RNN workspace is not known ({_NOT_MEASURED})"),
    "cudnn-ctc": (0.10, f"cuDNN's CTC workspace is not known ({_NOT_MEASURED})"),
    "cusolver": (0.10, f"cuSOLVER's workspace is not known ({_NOT_MEASURED})"),
    "cusparse": (0.10, f"cuSPARSE's workspace is not known ({_NOT_MEASURED})"),
    "cusparselt": (0.10, f"cuSPARSELt's workspace is not known ({_NOT_MEASURED})"),
    "managed": (0.10, f"managed memory may lie on the GPU or not ({_NOT_MEASURED})"),
    "cufft": (0.10, f"cuFFT's workspace is not known ({_NOT_MEASURED})"),
    "nccl": (0.10, f"NCCL's buffers are not known ({_NOT_MEASURED})"),
    "profile-engine": (0.05, "real steps on this machine's CPU stand for the GPU's"),
    "forward-read": (0.10, f"the model reads values in its forward pass ({{detail}}), zeros here ({_NOT_MEASURED})"),
    "never-stepped": (0.10, f"{{detail}}: the script is taken for one that only evaluates ({_NOT_MEASURED})"),
    "optimizer-read": (0.10, f"{{detail}} decides by values, zeros here, how far it goes ({_NOT_MEASURED})"),
    "engine": (BASE_MARGIN, "{detail}"),
    "value-shape": (BASE_MARGIN, "{detail}: where they are not known, everything counts as selected"),
    "value-shape-least": (BASE_MARGIN, "with nothing selected the peak would be {detail}"),
    "stand-in-data": (BASE_MARGIN, "{detail} is not on this machine: stand-in data of its shape took its place"),
    "stand-in-weights": (BASE_MARGIN, "the weights of {detail} are not on this machine: others took their place"),
    "not-reached": (0.10, f"{{detail}} was not reached: what it needs was not seen ({_NOT_MEASURED})"),
    "seen-early": (BASE_MARGIN, "{detail} was seen before the first step only, without the optimizer's state"),
    "largest-drawn": (BASE_MARGIN, "batches differ in size, and {detail} was trained on"),
    "varying": (BASE_MARGIN, "{detail}"),
    "extrapolated": (BASE_MARGIN, "{detail}"),
    "ddp-buckets": (
        0.10,
        "torch's NCCL thread looks every 100 ms: {detail} may live on while it makes the next (measured: 9 %)",
    ),
    "ranks": (0.10, f"{{detail}} may need more than those that were run ({_NOT_MEASURED})"),
    "array": (0.10, f"{{detail}} ({_NOT_MEASURED})"),
    "no-triton": (
        0.10,
        (
            "torch.compile did not compile: the job's Python has no Triton here, and without it on the GPU's node the"
            f" job fails ({_NOT_MEASURED})"
        ),
    ),
    "autotuned": (
        0.10,
        f"max-autotune measures on the GPU which kernels it takes and what it fuses into them ({_NOT_MEASURED})",
    ),
    "record-stream": (0.10, f"memory used on other streams is free later on a GPU than here ({_NOT_MEASURED})"),
    "private-pool": (BASE_MARGIN, "CUDA graphs keep pools of their own, which are not released where memory is short"),
    "assumed-values": (0.10, f"{{detail}}: what the job does next may hang on it ({_NOT_MEASURED})"),
    "values-unknown": (0.10, f"{{detail}}: what is decided by values on the GPU is not known ({_NOT_MEASURED})"),
    "stopped": (0.10, f"the script stopped with {{detail}}; what would follow was not seen ({_NOT_MEASURED})"),
    "growing": (0.10, f"the run ended before the peak was seen to repeat ({_NOT_MEASURED})"),
}
"""Prior of the margin, as a share of the peak, and the reason, by the doubt's code. It holds for runs that are not like
those measured (`margins`). 0.20 covers what cuDNN 9.19's plans add to 36 of 39 networks with contiguous images on an
H200 and an A100 (benchmarks/data/cudnn_plans.jsonl). 0.10 is a round figure, twice the 0.054 that covers 90 of 100 runs
with unknown cuDNN plans on smaller GPUs, the one doubt of this kind that was measured."""


@dataclass(frozen=True)
class RankEstimate:
    """One process of the job. Sizes in bytes; `breakdown` is what was allocated when the most was."""

    trace: Trace
    replay: Replay
    """Without a limit."""
    fits_in_bytes: int
    """The least that torch's allocator must be able to have (`smallest_capacity`)."""
    margin: Margin
    margin_bytes: int
    outside_allocator_bytes: int
    beside_bytes: int = 0
    """Of what lies outside its allocator: what other processes of the job need on the same GPU at the same time."""

    @property
    def required_bytes(self) -> int:
        """What a GPU must have for this process, margin included."""
        return self.fits_in_bytes + self.outside_allocator_bytes + self.margin_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """What torch's allocator reserves where there is room for everything.

        Steps that are left out of the trace filled its cache, too: torch's own peak has them.
        """
        return max(self.replay.peak_reserved_bytes, self.trace.recorded.get("reserved_bytes", 0))

    @property
    def uses_up_to_bytes(self) -> int:
        """What is taken, with this process at its peak, of a GPU that has room for everything."""
        return self.peak_reserved_bytes + self.outside_allocator_bytes

    def failure_on(self, gpu: Gpu) -> Replay | None:
        """Return how the process fails on `gpu` with its margin to spare; None where it runs well."""
        found = replay(self.trace, self.capacity_on(gpu))
        return None if found.suffices else found

    @property
    def breakdown(self) -> Mapping[Category, int]:
        """Bytes by category at the peak."""
        return self.replay.at_peak_allocated.allocated_bytes

    def capacity_on(self, gpu: Gpu) -> int:
        """Bytes that torch's allocator can have on `gpu` if the margin must stay free."""
        return capacity_for(gpu, self.margin_bytes + self.beside_bytes + _nccl_bytes(self.trace, gpu))


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
        """Whether a job left alone takes more than it is said to need, as its user will see; less is the margin's."""
        return self.uses_up_to_bytes > self.required_bytes

    @property
    def doubts(self) -> Sequence[Doubt]:
        """Everything that the dry run could not see, over all ranks."""
        return [doubt for rank in self.ranks for doubt in _doubts(rank.trace)]

    @property
    def asks_for_script(self) -> bool:
        """Whether the job asked Slurm for the path of its own script."""
        return any(doubt.code == OWN_SCRIPT.code for doubt in self.doubts)

    @property
    def engine(self) -> str:
        """How the job was run: "device", on stand-in CUDA libraries, or "profile", for real on the CPU."""
        return "profile" if any(doubt.code == "profile-engine" for doubt in self.largest.trace.doubts) else "device"

    @property
    def reasons(self) -> Sequence[str]:
        """Why the margin is wider than the least, and what was not run, one line each."""
        wider = [MARGINS[each.code][1].format(detail=each.detail) for each in self.doubts if each.code in MARGINS]
        not_run = _others_not_run([rank.trace for rank in self.ranks])
        added = ["processes that ran at once on one GPU are added up"] if self.largest.beside_bytes else []
        return list(dict.fromkeys([*wider, *not_run, *added]))

    @property
    def confidence(self) -> str:
        """Say "high" where nothing is known to be missing, else "medium"; "low" is a NoEstimate.

        Where the script's own end was not reached, nothing is missing if its loops can do nothing more that was not
        seen (`not-reached`), by their source.
        """
        return "medium" if self.reasons else "high"

    def fits(self, gpu: Gpu) -> bool:
        """Whether every rank runs to its end on `gpu`, with its margin to spare, and does not live on retries."""
        return all(rank.failure_on(gpu) is None for rank in self.ranks)


def margin_of(codes: Iterable[str], capability: str, own: Mapping[str, float] = MappingProxyType({})) -> Margin:
    """Return the margin of a run with doubts of these codes on a GPU of this compute capability.

    Doubts that change no size do not count. `own` has the price of those whose price follows from what was seen.
    """
    priors = {code: max(share, own.get(code, 0)) for code, (share, _) in MARGINS.items()}
    return margins.margin(set(codes) & set(MARGINS), capability, priors)


def margin_bytes(margin: Margin, allocator_bytes: int) -> int:
    """Return a margin in bytes, in whole pages of the GPU."""
    return round_up(int(margin.share * allocator_bytes), 2 * MIB)


def capacity_for(gpu: Gpu, kept_bytes: int) -> int:
    """Bytes that torch's allocator can have on `gpu` if `kept_bytes` must stay free beside the CUDA context."""
    return max(0, gpu.total_bytes - gpu.context_bytes - kept_bytes)


def estimate(traces: Sequence[Trace], gpu_name: str, gpu: Gpu) -> Estimate:
    """Estimate a job from the traces of one dry run on `gpu`.

    Processes that used no GPU memory (launchers, data loaders) do not count.

    Raises:
        NoEstimate: no process used GPU memory, or one ended too early to be trusted; says why.
    """
    ranks = [_rank(trace, gpu) for trace in traces if trace.allocations]
    if not ranks:
        failed = [(trace.lived[1], trace.error) for trace in traces if trace.error]  # a launcher ends after its workers
        raise NoEstimate(min(failed)[1] if failed else "no process used GPU memory")
    return Estimate(gpu_name, [_among(rank, ranks) for rank in ranks])


def _among(rank: RankEstimate, ranks: Sequence[RankEstimate]) -> RankEstimate:
    """Add what was beside a process. Which of them peak together is not known: each is taken at its peak."""
    others = [each.required_bytes for each in ranks if each is not rank and each.trace.beside(rank.trace)]
    outside = rank.outside_allocator_bytes + sum(others)
    return replace(rank, outside_allocator_bytes=outside, beside_bytes=sum(others))


def _rank(trace: Trace, gpu: Gpu) -> RankEstimate:
    if trace.failed:
        raise NoEstimate(f"the script stopped after {_steps(trace)} with {trace.error}")
    if trace.growing and trace.steps < 2 and not _has_no_optimizer(trace):
        raise NoEstimate(f"only {_steps(trace)} within the time budget; --xmem-budget SECONDS gives it more")
    missing = next((doubt.detail for doubt in trace.doubts if doubt.code in ("tasks", "rank-alone")), None)
    if missing is not None:
        raise NoEstimate(missing)
    grows = next((doubt.detail for doubt in trace.doubts if doubt.code == "still-growing"), None)
    if grows is not None:
        raise NoEstimate(f"memory was still growing when the dry run ended: {grows}, and how many follow is not known")
    unlimited, doubts = replay(trace), _doubts(trace)
    own = {doubt.code: doubt.share for doubt in doubts if doubt.share is not None}
    margin = margin_of((doubt.code for doubt in doubts), gpu.capability, own)
    fits_in = smallest_capacity(trace, unlimited)
    kept = margin_bytes(margin, fits_in)
    return RankEstimate(trace, unlimited, fits_in, margin, kept, gpu.context_bytes + _nccl_bytes(trace, gpu))


def _nccl_bytes(trace: Trace, gpu: Gpu) -> int:
    """Return what NCCL takes beside the CUDA context, where the job uses it and its site measured it; else 0."""
    return (gpu.nccl_bytes or 0) if any(doubt.code == "nccl" for doubt in trace.doubts) else 0


def _doubts(trace: Trace) -> list[Doubt]:
    growing = [Doubt("growing", f"ended by {trace.state} after {_steps(trace)}", 1)] if trace.growing else []
    stopped = [Doubt("stopped", trace.error, 1)] if trace.error is not None else []
    return [*trace.doubts, *growing, *stopped]


def _has_no_optimizer(trace: Trace) -> bool:
    """Whether the script trains without an optimizer, so that there are no steps to wait for.

    Without a backward pass it may as well be a script that has not come to its training yet.
    """
    trains = sum(mark.kind == "backward" for mark in trace.marks) >= 2
    return trains and any(doubt.code == "no-optimizer" for doubt in trace.doubts)


def _others_not_run(traces: Sequence[Trace]) -> list[str]:
    """Say of each world of ranks which of them stand for all."""
    worlds = {trace.world_size: set[int]() for trace in traces if trace.world_size > 1}
    for trace in traces:
        worlds.get(trace.world_size, set()).add(trace.rank)
    return [_ran(sorted(ranks), size) for size, ranks in worlds.items() if len(ranks) < size]


def _ran(ranks: Sequence[int], size: int) -> str:
    if len(ranks) == 1:
        return f"only rank {ranks[0]} of {size} was run and stands for all"
    return f"of {size} ranks {', '.join(map(str, ranks))} were run; the largest stands for all"


def _steps(trace: Trace) -> str:
    return f"{trace.steps} optimizer step{'' if trace.steps == 1 else 's'}"
