"""The estimate as one JSON object, for programs. Schema version 1; sizes in bytes."""

import json
from pathlib import Path
from typing import Any

from xmem_slurm.estimate import ENGINE, RankEstimate
from xmem_slurm.sizing import Sizing
from xmem_slurm.trace import Category

SCHEMA_VERSION = 1


def estimate_object(sizing: Sizing) -> dict[str, Any]:
    """Return what `xmem-slurm estimate --json` prints."""
    estimate = sizing.estimate
    return {
        "schema_version": SCHEMA_VERSION,
        "engine": ENGINE,
        "torch_version": estimate.largest.trace.torch_version,
        "gpu": estimate.gpu_name,
        "ranks": [_rank(rank) for rank in estimate.ranks],
        "required_bytes": estimate.required_bytes,
        "margin_bytes": estimate.largest.margin_bytes,
        "confidence": {"level": estimate.confidence, "reasons": list(estimate.reasons)},
        "options": [
            {"name": verdict.name, "capacity_bytes": verdict.gpu.total_bytes, "fits": verdict.fits}
            for verdict in sizing.placement.verdicts
        ],
        "choice": sizing.placement.choice,
        "wall_seconds": round(sizing.seconds, 3),
    }


def write(path: Path, sizing: Sizing) -> None:
    """Write the object to a file, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(estimate_object(sizing), indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def _rank(rank: RankEstimate) -> dict[str, Any]:
    return {
        "rank": rank.trace.rank,
        "peak_reserved_bytes": rank.replay.peak_reserved_bytes,
        "peak_allocated_bytes": rank.replay.peak_allocated_bytes,
        "outside_allocator_bytes": rank.outside_allocator_bytes,
        "required_bytes": rank.required_bytes,
        "breakdown": {category.value: rank.breakdown.get(category, 0) for category in Category},
        "steps": rank.trace.steps,
        "growing": rank.trace.growing,
    }
