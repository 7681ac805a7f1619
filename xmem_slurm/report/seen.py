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
    progress = trace.seen or Seen(trace.steps)
    words = []
    if progress.steps or progress.evaluation is None:
        words.append(f"{_steps(trace, progress)} seen")
    if progress.batches is not None:
        words.append(f"{_part(*progress.batches)} batches")
    also = [noted for noted in trace.doubts if noted.doubt in _SEEN_AS_WELL]
    words += [noted.doubt.sentence.format(detail=noted.detail) for noted in also]
    if progress.evaluation is not None:
        batches, of = progress.evaluation
        words.append(
            f"an evaluation ({_part(batches, of)} batches)" if batches else "an evaluation"
        )
    if progress.checkpoints:
        words.append(f"{_count(progress.checkpoints, 'file')} saved")
    if progress.end:
        loops = (progress.batches, progress.evaluation, progress.epochs)
        cut = any(part is not None and (part[1] or 0) > part[0] for part in loops)
        words.append("the script's end" + (" by ending its loops over data early" if cut else ""))
    return ", ".join(words)


def _steps(trace: Trace, progress: Seen) -> str:
    """Say how many steps; where there was none, what there was in their place."""
    backward = sum(mark.kind == "backward" for mark in trace.marks)
    if progress.steps or not trace.allocations:
        return _count(progress.steps, "optimizer step")
    if backward:
        return f"{_count(backward, 'backward pass', 'es')} and no optimizer"
    return "forward passes and no training"


def _part(count: int | None, of: int | None) -> str:
    return f"{count or 0:,}" + (f" of {of:,}" if of is not None else "")


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else ending}"
