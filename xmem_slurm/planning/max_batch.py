"""What is the largest batch that fits each GPU? Found by dry runs: it fits in one, and one sample
more does not.

What a job needs grows with its batch in straight pieces: below some size the peak is where the
optimizer steps, above it among the activations; and libraries choose other kernels for other sizes.
So a line through two dry runs says which batch to try next, and only dry runs say what fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing.dry_runs import ComponentEstimates, DryRunsByKind
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.sizing.margins import NO_EXPERIENCE, Experience

FIRST = 8
"""The first batch that is tried: what divides batches, such as normalization, fails with less."""
GROWTH = 4
"""So many times the largest batch is tried next where the last two needed alike."""
MOST = 1 << 16
"""Of a job that needs no more with so large a batch, something else is the batch."""
MOST_DRY_RUNS = 20
"""On each kind of GPU; five are usual: two for the line, the answer, and one more."""


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """The largest batch of one process on one GPU option.

    `estimate` is with that batch, None where not even one sample fits. `over` is with one sample
    more, which does not fit; None where the largest was not found, and `why_not` then says why.
    """

    option: str
    gpu: Gpu
    batch: int
    estimate: Estimate | None
    over: Estimate | None
    why_not: str = ""

    @property
    def required_bytes(self) -> int | None:
        """What that batch needs: at most the GPU that it was seen to fit, which is exact, where the
        least is not.
        """
        if self.estimate is None:
            return None
        return min(self.estimate.required_bytes, self.gpu.total_bytes)


def largest(
    order: DryRunOrder,
    lever: BatchLever,
    component: int,
    gpus: Mapping[str, Gpu],
    experience: Experience = NO_EXPERIENCE,
) -> Orders[Sequence[MaxBatch]]:
    """Find the largest batch on each of these GPUs. The order's budget is for the dry runs of one
    batch.

    Raises:
        NoEstimate: a dry run failed, or the lever changes nothing.
        UsageError: there is nothing that the lever could change.
    """
    tried, batches = _Tried(order, lever, component, gpus, experience.of_another_way()), {}
    for name in sorted(gpus, key=lambda name: gpus[name].total_bytes):
        batches[name] = yield from _largest_on(name, tried)
    return list(batches.values())


@dataclass
class _Tried:
    """The dry runs so far; those of one kind of GPU (`DryRunsByKind.kind`) speak for all of that
    kind.
    """

    order: DryRunOrder
    lever: BatchLever
    component: int
    gpus: Mapping[str, Gpu]
    experience: Experience

    def __post_init__(self) -> None:
        self._estimates: dict[tuple[str, int], dict[int, Estimate]] = {}

    def of(self, name: str) -> dict[int, Estimate]:
        """Return the estimates at hand for this kind of GPU, by batch."""
        gpu = self.gpus[name]
        return self._estimates.setdefault((gpu.capability, gpu.multiprocessors), {})

    def guess(self, name: str) -> int:
        """Return the batch to begin with: what another kind of GPU says of it."""
        lines = [_further(estimates, self.gpus[name]) for estimates in self._estimates.values()]
        return min(MOST, next((guess for guess in lines if guess is not None), FIRST))

    def run(self, name: str, batch: int) -> Orders[Estimate]:
        """Have the job run dry with this batch on this option's kind of GPU.

        Raises:
            NoEstimate: as `largest` does.
        """
        order = self.lever.at(self.order, batch)
        dry_runs = DryRunsByKind(
            order, {name: self.gpus[name]}, SharedBudget(order.budget), self.experience
        )
        try:
            estimate = yield from ComponentEstimates(dry_runs, self.component, name, name).on(name)
        except NoEstimate as error:
            raise NoEstimate(f"with a batch of {batch}: {error}", error.files) from error
        if order.batch is not None and not any(rank.trace.changed for rank in estimate.ranks):
            raise NoEstimate(
                "no DataLoader gives its batches, or several with batches of different sizes; name "
                "what does:"
                " --vary batch_size=--OPTION or batch_size=VARIABLE"
            )
        self.of(name)[batch] = estimate
        return estimate


def _largest_on(name: str, tried: _Tried) -> Orders[MaxBatch]:
    """Search on one GPU, beginning with what is known of its kind."""
    gpu, estimates, runs, was_open = tried.gpus[name], tried.of(name), 0, MOST
    fitting = {batch: estimate.fits(gpu) for batch, estimate in estimates.items()}
    while True:
        fits = max((batch for batch, does in fitting.items() if does), default=0)
        over = min(
            (batch for batch, does in fitting.items() if not does and batch > fits), default=None
        )
        at_most = estimates.get(fits)
        if over == fits + 1:
            return MaxBatch(name, gpu, fits, at_most, estimates[over])
        if fits >= MOST or runs == MOST_DRY_RUNS:
            why = (
                "a larger batch needs no more" if fits >= MOST else f"not found in {runs} dry runs"
            )
            return MaxBatch(name, gpu, fits, at_most, None, f"{why}; {tried.lever} was varied")
        is_open = (over or MOST) - fits
        batch = _next(name, tried, fits, over, halve=2 * is_open > was_open)
        was_open = is_open
        fitting[batch] = (yield from tried.run(name, batch)).fits(gpu)
        runs += 1


def _next(name: str, tried: _Tried, fits: int, over: int | None, *, halve: bool) -> int:
    """Return the batch to try next: more than `fits`, less than `over`.

    It is the one in the middle where a line has just left more than half of what was open: it
    bends.
    """
    estimates, gpu = tried.of(name), tried.gpus[name]
    if not estimates:
        return tried.guess(name)
    if over is None:
        further = 2 * fits if len(estimates) == 1 else _further(estimates, gpu) or GROWTH * fits
        return min(MOST, max(further, fits + 1))
    between = (fits + over) // 2 if halve or not fits else _on_line(estimates, fits, over, gpu)
    return min(max(between or 0, fits + 1), over - 1)


def _further(estimates: Mapping[int, Estimate], gpu: Gpu) -> int | None:
    """Return what fits by the line through the largest batch and one at most half of it; None: it
    does not rise.
    """
    larger = max(estimates, default=0)
    smaller = max((batch for batch in estimates if 2 * batch <= larger), default=None)
    return _on_line(estimates, smaller, larger, gpu) if smaller is not None else None


def _on_line(estimates: Mapping[int, Estimate], smaller: int, larger: int, gpu: Gpu) -> int | None:
    """Return the largest batch that would fit if need rose straight from one batch to the other;
    None: it does not.
    """
    at_less, at_more = estimates[smaller].required_bytes, estimates[larger].required_bytes
    if at_more <= at_less:
        return None
    return max(1, smaller + (larger - smaller) * (gpu.total_bytes - at_less) // (at_more - at_less))
