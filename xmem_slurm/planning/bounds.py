"""What does a way of training need at the least? By what the job as it is written keeps from step
to step.
"""

from dataclasses import dataclass

from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.trace import Category, Op, Trace


@dataclass(frozen=True, slots=True)
class Persistent:
    """Bytes that one GPU keeps from step to step, as a dry run showed them at the end of an
    optimizer step.
    """

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer


def persistent_of(trace: Trace) -> Persistent:
    """Return what was alive at the end of the step at which that was the most; nothing where there
    was no step.
    """
    ends = {mark.allocations for mark in trace.marks if mark.kind == "step"}
    live, count, largest = dict.fromkeys(Category, 0), 0, Persistent(0, 0, 0)
    for event in trace.events:
        if event.op == Op.ALLOC:
            allocation, count = trace.allocations[event.allocation], count + 1
            live[allocation.category] += allocation.size
            if count in ends:  # before gradients are freed: that has no allocation of its own
                persistent = Persistent(
                    live[Category.PARAM], live[Category.GRAD], live[Category.OPT]
                )
                largest = max(largest, persistent, key=lambda kept: kept.total)
        elif event.op == Op.FREE_COMPLETED:
            allocation = trace.allocations[event.allocation]
            live[allocation.category] -= allocation.size
    return largest


def bound(base: Base, persistent: Persistent, candidate: Candidate) -> int:
    """Return bytes that a candidate cannot do without on one GPU; 0 where the base shows too little
    of it to say.

    A part of N is at least one N-th: shards are padded. DeepSpeed computes with parameters of 16
    bits, beside which a shard of the optimizer has them in 32 (runtime/bf16_optimizer.py,
    zero/stage_1_and_2.py), and frees gradients before it steps. What is offloaded may be nowhere on
    a GPU. Of a job that is itself sharded nothing is known of fewer GPUs.
    """
    method = candidate.method
    if base.is_sharded or method.offloaded:
        return 0
    kept = {
        "parameters": persistent.parameters,
        "gradients": persistent.gradients,
        "optimizer": persistent.optimizer,
    }
    if method.name.startswith("zero"):
        is_half = base.training.precision in ("bf16", "fp16") or candidate.bf16
        copy = persistent.parameters if is_half else 0
        kept = {
            "parameters": persistent.parameters // 2,
            "gradients": 0,
            "optimizer": persistent.optimizer + copy,
        }
    parts = {
        name: candidate.tensor * (candidate.shards if name in method.shards else 1) for name in kept
    }
    return sum(size // parts[name] for name, size in kept.items())
