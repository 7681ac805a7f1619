"""What may a way of training do and need, before it is run? By the dry runs so far, for the order
of the next alone.

Nothing is advised by it: it says which way to try first, and with which batch. What it gets wrong
costs a dry run.
"""

from dataclasses import dataclass, field, replace

from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.planning.bounds import Persistent
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.trace import Trace
from xmem_slurm.work import Collective, Product, Work

RECOMPUTED = 4 / 3
"""Of a step's work with checkpointing: the forward pass, a third of it, is done twice."""
CHECKPOINTED = 0.25
"""Of activations that are left with it, until a dry run has shown that."""
OVERLAPPED = 0.9
"""Of a step, that gradients' reduction and the gathering of the next layer's parameters can run
beside."""

STEPS = 4
"""Of a dry run whose steps repeat themselves: the first lacks the optimizer's state, the second is
whole, and two more are like it (probe/_xmem/process/steps.py)."""
MADE = 8
"""Batches of a dry run that are made where those like them are skipped: with and without gradients
to add to, the last of a step, each two or three times (probe/_xmem/repeat/known.py)."""
SKIPPED = 0.2
"""Of the time of a batch that is made, that of one that is skipped: the script's own Python, and
its trainer's. With transformers' Trainer and a Llama of 8 layers."""


def work(base: Base, base_work: Work, persistent: Persistent, candidate: Candidate) -> Work:
    """Return what a candidate would do: as much a sample as the base does, and the collectives of
    its method.
    """
    before = base.training
    samples = (
        candidate.micro_batch
        * candidate.accumulation
        / max(1, before.micro_batch * before.accumulation)
    )
    samples /= candidate.tensor / max(1, before.tensor)
    samples *= RECOMPUTED if candidate.checkpointing > before.checkpointing else 1.0
    passes = candidate.accumulation / before.accumulation
    passes *= RECOMPUTED if candidate.checkpointing > before.checkpointing else 1.0
    offloaded_bytes = 0.0
    if candidate.method.offloaded:
        offloaded_bytes = float(2 * persistent.optimizer // candidate.shards)
    return replace(
        base_work,
        products=tuple(
            _scaled(product, samples / passes, passes) for product in base_work.products
        ),
        flops={precision: flops * samples for precision, flops in base_work.flops.items()},
        bytes=base_work.bytes * samples,
        launches=int(base_work.launches * passes),
        collectives=tuple(_collectives(base, persistent, candidate)),
        offloaded_bytes=offloaded_bytes,
    )


def _scaled(product: Product, batch: float, passes: float) -> Product:
    return replace(
        product, m=max(1, round(product.m * batch)), count=max(1, round(product.count * passes))
    )


def _collectives(base: Base, persistent: Persistent, candidate: Candidate) -> list[Collective]:
    """Return what goes between GPUs in a step: parameters in the precision of computing, gradients
    in theirs.
    """
    if candidate.gpus == 1:
        return []
    shards, name, times = candidate.shards, candidate.method.name, candidate.accumulation
    full = persistent.parameters * (base.ranks if base.is_sharded else 1)
    half = full // 2 if base.training.precision in ("bf16", "fp16") else full
    nodes = 1 if candidate.method.is_hybrid else candidate.nodes

    def of(kind: str, size: int, ranks: int, count: int, nodes: int = nodes) -> Collective:
        return Collective(kind, size, ranks, nodes, count, OVERLAPPED)

    if name == "ddp":
        return [of("all_reduce", full, candidate.gpus, 1)]
    if name.startswith(("zero1", "zero2")):
        return [of("reduce_scatter", half, shards, times), of("all_gather", half, shards, 1)]
    gathers = 1 if name == "fsdp2-grad" else 2
    sharded = [
        of("all_gather", half, shards, gathers * times),
        of("reduce_scatter", full, shards, times),
    ]
    if candidate.method.is_hybrid:
        sharded.append(
            of("all_reduce", full // shards, candidate.gpus // shards, times, candidate.nodes)
        )
    return sharded


def beside(persistent: Persistent, candidate: Candidate) -> int:
    """Return bytes that a method is expected to hold whole within a step, in 16 bits, beside what
    it keeps.

    FSDP's gradients are sharded after the last micro-batch alone where accelerate or Lightning
    accumulate them (`Accelerator.no_sync`, 1.15; `no_backward_sync`, Lightning 2.6).
    """
    if candidate.gpus == 1:
        return 0
    method = candidate.method
    whole = {"fsdp2-grad": persistent.parameters, "zero1": persistent.gradients}.get(method.name, 0)
    if method.is_fsdp and candidate.accumulation > 1:
        whole += persistent.gradients
    return whole // 2


@dataclass
class Activations:
    """Bytes of one sample beside what persists, as dry runs have shown them, by checkpointing and
    method.

    Each with margins, for the method itself, and without, for others: they seldom need as much.
    """

    a_sample: dict[tuple[bool, str], tuple[float, float]] = field(default_factory=dict)

    def learn(self, candidate: Candidate, estimate: Estimate, persistent: int) -> None:
        """Take in what a dry run with this batch needed."""
        if candidate.micro_batch:
            with_margins, without = (
                max(0, size - persistent) / candidate.micro_batch
                for size in (estimate.required_bytes, estimate.largest.fits_in_bytes)
            )
            self.a_sample[candidate.checkpointing, candidate.method.name] = with_margins, without

    def of(self, candidate: Candidate) -> float:
        """Return the bytes of its batch; of a method that was not run the least of others, or a
        guess by that.
        """
        sizes = self.a_sample.get((candidate.checkpointing, candidate.method.name))
        if sizes is not None:
            return sizes[0] * candidate.micro_batch
        changed = CHECKPOINTED if candidate.checkpointing else 1 / CHECKPOINTED
        guesses = (
            without * (1 if checkpointing == candidate.checkpointing else changed)
            for (checkpointing, _), (_, without) in self.a_sample.items()
        )
        return min(guesses, default=0.0) * candidate.micro_batch


@dataclass
class RunSeconds:
    """Seconds of a budget that a dry run takes, as those so far have shown: before it trains, of
    each batch that is made, and whether batches were skipped.
    """

    by_method: dict[str, tuple[float, float, bool]] = field(default_factory=dict)

    def learn(self, trace: Trace, took: Spent) -> None:
        """Take in what a dry run took. It is noted from when CUDA is first used."""
        skips = trace.seen is not None and trace.seen.skipped > 0
        batches = _made(trace.steps * max(1, trace.training.accumulation), skips=skips)
        if batches and took.wall:
            training = min(1.0, (trace.lived[1] - trace.lived[0]) / took.wall)
            self.by_method[trace.training.method] = (
                took.seconds * (1 - training),
                took.seconds * training / batches,
                skips,
            )

    def of(self, candidate: Candidate) -> float:
        """Return the seconds of a candidate; by another method's where that was not run. 0: nothing
        is known.
        """
        otherwise = next(iter(self.by_method.values()), (0.0, 0.0, False))
        before, batch, skips = self.by_method.get(candidate.method.base, otherwise)
        skips = skips and not candidate.method.is_run_whole
        return before + batch * _made(STEPS * candidate.accumulation, skips=skips)


def _made(batches: int, *, skips: bool) -> float:
    """Return how many batches that are made take as long as so many of which most may be
    skipped.
    """
    if not skips:
        return batches
    return min(batches, MADE) + SKIPPED * max(0, batches - MADE)
