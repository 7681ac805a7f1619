"""The estimate as one JSON object, for programs. Schema version 1; sizes in bytes."""

from typing import Any

from xmem_slurm.estimate import ENGINE, Estimate, RankEstimate
from xmem_slurm.placement import Placement
from xmem_slurm.trace import Category

SCHEMA_VERSION = 1


def estimate_object(estimate: Estimate, placement: Placement | None, wall_seconds: float) -> dict[str, Any]:
    """Return what `xmem-slurm estimate --json` prints."""
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
            for verdict in (placement.verdicts if placement else ())
        ],
        "choice": placement.choice if placement else None,
        "wall_seconds": round(wall_seconds, 3),
    }


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
