"""What of a script ran in its dry run, in one line of words."""

from xmem_slurm.doubts import Doubt
from xmem_slurm.trace import Seen, Trace

_SEEN_AS_WELL = frozenset(
    {Doubt.STAND_IN_DATA, Doubt.DATA_REPEATED, Doubt.EPOCHS_ALIKE, Doubt.RANKS_ALIKE}
)
"""What is no doubt of the size, but of interest to who asks what the estimate rests on."""


def seen_words(trace: Trace) -> str:
    """Say how many steps, batches, evaluations and checkpoints were seen, and whether the script
    came to its end.
    """
    seen = trace.seen or Seen(trace.steps)
    words = (
        [] if seen.evaluation is not None and not seen.steps else [f"{_steps(trace, seen)} seen"]
    )
    if seen.batches is not None:
        words.append(f"{_part(*seen.batches)} batches")
    also = [noted for noted in trace.doubts if noted.doubt in _SEEN_AS_WELL]
    words += [noted.doubt.sentence.format(detail=noted.detail) for noted in also]
    if seen.evaluation is not None:
        batches, of = seen.evaluation
        words.append(
            f"an evaluation ({_part(batches, of)} batches)" if batches else "an evaluation"
        )
    if seen.checkpoints:
        words.append(_count(seen.checkpoints, "checkpoint"))
    if seen.end:
        loops = (seen.batches, seen.evaluation, seen.epochs)
        cut = any(part is not None and (part[1] or 0) > part[0] for part in loops)
        words.append("the script's end" + (", with loops over data cut short" if cut else ""))
    return ", ".join(words)


def _steps(trace: Trace, seen: Seen) -> str:
    """Say how many steps; where there was none, what there was in their place."""
    backward = sum(mark.kind == "backward" for mark in trace.marks)
    if seen.steps or not trace.allocations:
        return _count(seen.steps, "optimizer step")
    return (
        f"{_count(backward, 'backward pass', 'es')} and no optimizer"
        if backward
        else "forward passes and no training"
    )


def _part(done: int | None, of: int | None) -> str:
    return f"{done or 0:,}" + (f" of {of:,}" if of is not None else "")


def _count(number: int, what: str, ending: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else ending}"
