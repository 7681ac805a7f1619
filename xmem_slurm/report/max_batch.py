"""The largest batch that fits each GPU option, for people and for programs."""

from collections.abc import Sequence
from typing import Any

from xmem_slurm.planning.max_batch import MaxBatch
from xmem_slurm.report.json import SCHEMA_VERSION
from xmem_slurm.units import human


def lines(max_batches: Sequence[MaxBatch]) -> list[str]:
    """Say of each GPU option what the largest batch needs there, and what one sample more would."""
    width = max((len(max_batch.option) for max_batch in max_batches), default=0)
    estimates = [row.estimate for row in max_batches if row.estimate is not None]
    reasons = dict.fromkeys(reason for estimate in estimates for reason in estimate.reasons)
    confident = sorted({estimate.confidence for estimate in estimates})
    shown = [
        (
            "the largest batch of one process that fits, as dry runs with it, and with one sample "
            "more, showed:"
        ),
        *(
            f"  {row.option:{width}}  {human(row.gpu.total_bytes):>10}  {_words(row)}"
            for row in max_batches
        ),
    ]
    if confident:
        because = "; ".join(["margins included", *reasons])
        shown.append(f"confidence {' and '.join(confident)}: {because}")
    return shown


def _words(max_batch: MaxBatch) -> str:
    if max_batch.estimate is None and max_batch.over is not None:
        return f"none: 1 needs {human(max_batch.over.required_bytes)}"
    needed = "was not seen to fit"
    if max_batch.required_bytes is not None:
        needed = f"needs {human(max_batch.required_bytes)}"
    if max_batch.over is None:
        return f"{max_batch.batch} {needed}; the largest is not known: {max_batch.why_not}"
    one_more = human(max_batch.over.required_bytes)
    return f"{max_batch.batch} {needed}; {max_batch.batch + 1} would need {one_more}"


def objects(max_batches: Sequence[MaxBatch]) -> dict[str, Any]:
    """Return what `xmem-slurm estimate --max-batch --json` prints; sizes in bytes, null is what is
    not known.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "max_batch": [_object(max_batch) for max_batch in max_batches],
    }


def _object(max_batch: MaxBatch) -> dict[str, Any]:
    over = max_batch.over
    return {
        "option": max_batch.option,
        "capacity_bytes": max_batch.gpu.total_bytes,
        "batch": max_batch.batch,
        "required_bytes": max_batch.required_bytes,
        "confidence": max_batch.estimate.confidence if max_batch.estimate is not None else None,
        "required_bytes_with_one_more": over.required_bytes if over is not None else None,
        "why_not": max_batch.why_not or None,
    }
