"""The largest batch that fits each GPU option, for people and for programs."""

from collections.abc import Sequence
from typing import Any

from xmem_slurm.planning.max_batch import MaxBatch
from xmem_slurm.report.json import SCHEMA_VERSION
from xmem_slurm.units import human


def lines(found: Sequence[MaxBatch]) -> list[str]:
    """Say of each GPU option what the largest batch needs there, and what one sample more would."""
    width = max((len(each.option) for each in found), default=0)
    confident = sorted({each.estimate.confidence for each in found if each.estimate is not None})
    reasons = dict.fromkeys(
        reason for each in found if each.estimate is not None for reason in each.estimate.reasons
    )
    return [
        (
            "the largest batch of one process that fits, as dry runs with it, and with one sample "
            "more, showed:"
        ),
        *(
            f"  {each.option:{width}}  {human(each.gpu.total_bytes):>10}  {_words(each)}"
            for each in found
        ),
        *(
            [f"confidence {' and '.join(confident)}: {'; '.join(['margins included', *reasons])}"]
            if confident
            else []
        ),
    ]


def _words(found: MaxBatch) -> str:
    if found.estimate is None and found.over is not None:
        return f"none: 1 needs {human(found.over.required_bytes)}"
    needed = (
        "was not seen to fit"
        if found.required_bytes is None
        else f"needs {human(found.required_bytes)}"
    )
    if found.over is None:
        return f"{found.batch} {needed}; the largest is not known: {found.why_not}"
    return (
        f"{found.batch} {needed}; {found.batch + 1} would need {human(found.over.required_bytes)}"
    )


def objects(found: Sequence[MaxBatch]) -> dict[str, Any]:
    """Return what `xmem-slurm estimate --max-batch --json` prints; sizes in bytes, null is what is
    not known.
    """
    return {"schema_version": SCHEMA_VERSION, "max_batch": [_object(each) for each in found]}


def _object(found: MaxBatch) -> dict[str, Any]:
    return {
        "option": found.option,
        "capacity_bytes": found.gpu.total_bytes,
        "batch": found.batch,
        "required_bytes": found.required_bytes,
        "confidence": found.estimate.confidence if found.estimate is not None else None,
        "required_bytes_with_one_more": found.over.required_bytes
        if found.over is not None
        else None,
        "why_not": found.why_not or None,
    }
