"""Memory snapshots of six configurations of a transformer of 3.4 B parameters, one after another in one process.

Needs einops, jaxtyping and pandas, and the checkout of kkaitlyn111/cs336-assignment1 beside it, which has the model.
The snapshots that the rows name are of mixed_precision=False; at the commit the script's own loop says True. So its
function is called here as that loop calls it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.real_runs import histories
from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run, peak_between_resets
from xmem_slurm.sizing.estimate import Estimate

SOURCE = "kkaitlyn111/cs336-a2-systems"
MODEL = "kkaitlyn111+cs336-assignment1"
ORDER = [
    f"memory_ctx{length}_{kind}" for kind in ("forward", "fullstep") for length in (128, 256, 512)
]
"""What the snapshots are called, in the order in which the process leaves them; some have a "_" at the end."""

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1
exec python -c '
import torch
from cs336_systems.benchmark import get_model_config, run_memory_foward_fullstep
torch.set_float32_matmul_precision("high")
for forward_only in (True, False):
    for context_length in (128, 256, 512):
        run_memory_foward_fullstep(
            **get_model_config("2.7b"), context_length=context_length, batch_size=4, vocab_size=10000, theta=10000,
            dtype=torch.float32, model_size="2.7b", mixed_precision=False, forward_only=forward_only)
'
"""


def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]:
    """Yield one run for all rows. Both packages ask for their own version, so `folder` says that they are installed."""
    for name in ("cs336_basics", "cs336_systems"):
        installed = folder / f"{name}-1.0.4.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.4\n", encoding="utf-8"
        )
    yield Run(
        key="six configurations",
        rows=rows,
        script=SCRIPT,
        folder=checkout,
        gpu="h100-sxm5-80gb",
        torch=rows[0].torch,
        answer=answer,
        parting=partial(parting, checkout),
        environ={"PYTHONPATH": f"{checkout.parent / MODEL}:{folder}"},
    )


def answer(row: Row, estimate: Estimate) -> int:
    """Return the peak of the configuration that a row is of: each begins with a reset."""
    return peak_between_resets(
        row, estimate, ORDER.index(Path(row.columns["path"]).stem.rstrip("_")) + 1
    )


def parting(checkout: Path, row: Row, estimate: Estimate) -> str:
    """Say where a snapshot and the dry run first part."""
    return histories.parting(checkout / row.columns["path"], row, estimate)
