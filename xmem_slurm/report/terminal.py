"""What a person reads on stderr: at most eight lines, the first one the answer."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from xmem_slurm.estimate import Estimate
from xmem_slurm.placement import Placement
from xmem_slurm.rewrite import Change
from xmem_slurm.sizing import Sizing
from xmem_slurm.trace import Category
from xmem_slurm.units import human

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
    sizes = ((size, _NAMES[category]) for category, size in rank.breakdown.items() if size)
    parts = ", ".join(f"{name} {human(size)}" for size, name in sorted(sizes, reverse=True))
    steps = f"{rank.trace.steps} optimizer step{'' if rank.trace.steps == 1 else 's'} seen"
    peak, outside = human(rank.replay.peak_reserved_bytes), human(rank.outside_allocator_bytes)
    total = (
        f"{human(estimate.required_bytes)} = {peak} peak + {outside} CUDA context + {human(rank.margin_bytes)} margin"
    )
    return [
        f"GPU memory needed: {total}",
        f"at the peak: {parts}",
        f"confidence {estimate.confidence}: {'; '.join([steps, *estimate.reasons])}",
    ]


def option_lines(placement: Placement) -> list[str]:
    """Say of each GPU option whether the job fits; a cheaper one that fits ends the search."""
    answers = {True: "fits", False: "does not fit", None: "not tried: a cheaper one fits"}
    width = max((len(verdict.name) for verdict in placement.verdicts), default=0)
    return [f"{v.name:{width}}  {human(v.gpu.total_bytes):>10}  {answers[v.fits]}" for v in placement.verdicts]


def reason(sizing: Sizing) -> str:
    """Say in one line why the chosen option was chosen."""
    choice = sizing.placement.choice
    chosen = next(v for v in sizing.placement.verdicts if v.name == choice)
    return (
        f"{human(sizing.estimate.required_bytes)} of GPU memory needed; {choice} has {human(chosen.gpu.total_bytes)},"
        f" the cheapest of {len(sizing.placement.verdicts)} options that fits"
    )


def outcome(changes: Sequence[Change], sizing: Sizing) -> str:
    """Say what was changed and why."""
    if not changes:
        return f"the request stays as it is: {reason(sizing)}"
    places = ", ".join(dict.fromkeys(change.where for change in changes))
    return f"{'; '.join(map(str, changes))} ({places}): {reason(sizing)} [--xmem-keep-type keeps a type you wrote]"


def advice(sizing: Sizing) -> str:
    """Say what would be changed if it were allowed."""
    return f"the request stays as it is, as asked; {reason(sizing)}"


def nothing_fits(sizing: Sizing) -> str:
    """Say that no option is large enough; the job goes as written."""
    largest = max((v.gpu.total_bytes for v in sizing.placement.verdicts), default=0)
    return (
        f"submitted as written: no GPU option open to this job is large enough; the largest has {human(largest)}"
        if largest
        else "submitted as written: the site file has no nodes for this partition, constraint and number of GPUs"
    )


def progress(text: str) -> AbstractContextManager[object]:
    """Show that something is going on, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # noqa: PLC0415 - a batch script's submission has no use for it

    return Console(stderr=True).status(f"{text} ...")
