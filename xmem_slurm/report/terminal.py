"""What a person reads on stderr: at most eight lines, the first one the answer."""

from collections.abc import Sequence

from xmem_slurm.estimate import Estimate
from xmem_slurm.trace import Category
from xmem_slurm.units import human

PREFIX = "xsbatch: "

_NAMES = {
    Category.PARAM: "parameters",
    Category.BUFFER: "buffers",
    Category.GRAD: "gradients",
    Category.ACT: "activations",
    Category.TEMP: "temporary",
    Category.OPT: "optimizer state",
    Category.OTH: "other",
}


def estimate_lines(estimate: Estimate) -> list[str]:
    """Say how much GPU memory is needed, and what it is made of."""
    rank = estimate.largest
    parts = sorted(((size, _NAMES[category]) for category, size in rank.breakdown.items() if size), reverse=True)
    steps = f"{rank.trace.steps} optimizer step{'' if rank.trace.steps == 1 else 's'} seen"
    return [
        f"GPU memory needed: {human(estimate.required_bytes)} a GPU = {human(rank.replay.peak_reserved_bytes)} peak reserved"
        f" + {human(rank.outside_allocator_bytes)} outside the allocator + {human(rank.margin_bytes)} margin",
        f"  at the peak: {', '.join(f'{name} {human(size)}' for size, name in parts)}",
        f"  confidence: {estimate.confidence} ({'; '.join([steps, *estimate.reasons])})",
    ]


def write(lines: Sequence[str]) -> str:
    """Put our name before each line, so that nobody takes it for sbatch's."""
    return "".join(f"{PREFIX}{line}\n" for line in lines)
