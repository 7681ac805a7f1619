"""What does a way of training need at the least? By what the job as it is written keeps from step to step."""

from dataclasses import dataclass

from xmem_slurm.plan.candidates import Base, Candidate
from xmem_slurm.trace import Category, Op, Trace


@dataclass(frozen=True, slots=True)
class Persistent:
    """Bytes that one GPU keeps from step to step, as a dry run showed them at the end of an optimizer step."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer


def persistent_of(trace: Trace) -> Persistent:
    """Return what was alive at the end of the step at which that was the most; nothing where there was no step."""
    ends = {mark.allocations for mark in trace.marks if mark.kind == "step"}
    live, made, most = dict.fromkeys(Category, 0), 0, Persistent(0, 0, 0)
    for event in trace.events:
        if event.op == Op.ALLOC:
            if made in ends:
                found = Persistent(live[Category.PARAM], live[Category.GRAD], live[Category.OPT])
                most = max(most, found, key=lambda each: each.total)
            made += 1
            allocation = trace.allocations[event.allocation]
            live[allocation.category] += allocation.size
        elif event.op == Op.FREE_COMPLETED:
            allocation = trace.allocations[event.allocation]
            live[allocation.category] -= allocation.size
    return most


def bound(base: Base, found: Persistent, candidate: Candidate) -> int:
    """Return bytes that a candidate cannot do without on one GPU; 0 where the base shows too little of it to say.

    A part of N is at least one N-th: shards are padded. Gradients of ZeRO are not counted, as it frees them before its
    optimizer steps, and of its parameters 16 bits of 32, as it keeps a copy of that precision; what is offloaded may be
    nowhere. Of a job that is itself sharded only what no fewer shards hold is known.
    """
    method = candidate.method
    if base.is_sharded or method.offloaded:
        return 0
    is_zero = method.name.startswith("zero")
    kept = {
        "parameters": found.parameters // (2 if is_zero else 1),
        "gradients": 0 if is_zero else found.gradients,
        "optimizer": found.optimizer,
    }
    return sum(size // (candidate.shards if name in method.shards else 1) for name, size in kept.items())
