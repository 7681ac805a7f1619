"""What does the product estimate for each published run? Dry runs of the same workload, one line of
JSON each.

A line holds facts only: the row's key and workload, the versions, what the estimate says, or the
reason for none.
"""

import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from benchmarks import gpus
from benchmarks.published_rows import Row
from xmem_slurm import __version__
from xmem_slurm.allocator.replay import replay
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import XmemError
from xmem_slurm.sizing.estimate import capacity_for, estimate, margin_bytes

WORKLOAD = Path(__file__).parent / "workloads" / "published.py"

BUDGETS = {"device": Budget(seconds=300), "profile": Budget(seconds=1800)}
"""Five minutes for one row: models of some billion parameters are built on the CPU first. Real
steps take longer."""

GIGA_MACS = {
    "VGG16": 15.47,
    "ConvNeXtTiny": 4.46,
    "RegNetX400MF": 0.41,
    "MobileNetV2": 0.30,
    "MnasNet": 0.31,
    "MobeNetV3Large": 0.22,
}
"""Multiplications of one forward pass at 224 x 224, 10**9. Source: torchvision.models' table of
weights."""
MILLION_PARAMETERS = {
    "distilbert/distilgpt2": 82,
    "EleutherAI/gpt-neo-125M": 125,
    "facebook/opt-125m": 125,
}


@dataclass(frozen=True)
class Result:
    """The product on one row: an estimate (sizes in bytes), or the `reason` why there is none.

    `fits` is the product's verdict for the row's GPU; `fits_without_margin` the same with no margin
    kept free. `peak_on_gpu_bytes` is what is reserved at most on that GPU, where memory is short
    and the allocator gives back its cache: what a measurement on it sees. It is the peak where
    there is room for it or the run does not fit.
    """

    key: str
    date: str
    torch: str
    version: str
    gpu: str | None
    seconds: float
    reason: str | None = None
    peak_reserved_bytes: int = 0
    peak_on_gpu_bytes: int = 0
    peak_allocated_bytes: int = 0
    margin_bytes: int = 0
    outside_allocator_bytes: int = 0
    fits: bool = False
    fits_without_margin: bool = False
    steps: int = 0
    state: str = ""
    doubts: Sequence[str] = ()
    engine: str = "device"
    host_bytes: int = 0
    """The most host memory that the dry run had; 0 in lines from before it was noted."""
    fits_in_bytes: int = 0
    """The least that the allocator runs the job in: what the need rests on; 0 in lines from before
    it was noted..."""
    bound_bytes: int = 0
    """...as are what is in it in case cuDNN takes the largest of its plans..."""
    at_most_on_gpu_bytes: int = 0
    """...and what is reserved at most on that GPU if it does."""


def torch_version(python: str) -> str:
    """Return the version of the torch that the Python at `python` has, without importing it."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def load(path: Path) -> dict[str, Result]:
    """Read the results so far, by the row's key; the last line of a key holds."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {result.key: result for result in (Result(**json.loads(line)) for line in lines)}


def by_cost(rows: Sequence[Row], done: Collection[str] = ()) -> list[Row]:
    """Order rows by what their real steps cost on a CPU, after the cheapest of each model that has
    none `done`.
    """
    ordered = sorted(rows, key=_giga_macs)
    known = {row.model for row in rows if row.key in done}
    firsts = {row.model: row.key for row in reversed(ordered) if row.model not in known}
    return sorted(ordered, key=lambda row: (firsts.get(row.model) != row.key, _giga_macs(row)))


def _giga_macs(row: Row) -> float:
    """Of one forward pass: images are 86 x 86, sequences 128 tokens."""
    if row.model in GIGA_MACS:
        return GIGA_MACS[row.model] * (86 / 224) ** 2 * row.batch_size
    return MILLION_PARAMETERS[row.model] / 1000 * 128 * row.batch_size


def run_missing(
    rows: Sequence[Row], python: str, path: Path, jobs: int, engine: str = "device"
) -> Iterator[tuple[Row, Result]]:
    """Dry-run every row that has no estimate in `path`, append each result to it at once, and yield
    it.
    """
    version = torch_version(python)
    done = {key for key, result in load(path).items() if result.reason is None}
    missing = [
        row for row in (by_cost(rows, done) if engine == "profile" else rows) if row.key not in done
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pool: Executor | nullcontext[None] = ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext()
    with pool as executor, path.open("a", encoding="utf-8") as file:
        each = executor.map if executor is not None else map
        several = each(dry_run, missing, repeat(python), repeat(version), repeat(engine))
        for row, result in zip(missing, several, strict=True):
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            yield row, result


def dry_run(row: Row, python: str, torch: str, engine: str = "device") -> Result:
    """Estimate one row as the product would on a machine without a GPU."""
    started = time.monotonic()
    name, gpu = gpus.named(row.gpu, row.total_bytes) or (None, None)

    def result(**found: object) -> Result:
        seconds = round(time.monotonic() - started, 2)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        return Result(row.key, date, torch, __version__, name, seconds, engine=engine, **found)  # type: ignore[arg-type]

    if gpu is None:
        return result(reason=f"the GPU catalogue has no {row.gpu}")
    gpu = gpu.model_copy(update={"total_bytes": row.total_bytes})
    if row.fp16:
        return result(reason="fp16 run: the workload's loop is fp32")
    try:
        ran = runner.run(DryRunOrder.of(_job(row, python, engine), gpu, BUDGETS[engine]))
        found = estimate(ran.traces, name or "", gpu)
    except XmemError as error:
        return result(reason=str(error))
    rank = found.largest
    on_gpu, at_most = (
        replay(rank.trace, capacity_for(gpu, 0), at_most=largest) for largest in (False, True)
    )
    return result(
        peak_reserved_bytes=rank.replay.peak_reserved_bytes,
        peak_on_gpu_bytes=on_gpu.peak_reserved_bytes
        if on_gpu.fits
        else rank.replay.peak_reserved_bytes,
        peak_allocated_bytes=rank.replay.peak_allocated_bytes,
        margin_bytes=margin_bytes(rank.margin, rank.replay.peak_reserved_bytes),
        outside_allocator_bytes=rank.outside_allocator_bytes,
        fits=found.fits(gpu),
        fits_without_margin=on_gpu.fits,
        steps=rank.trace.steps,
        state=rank.trace.state,
        doubts=sorted({doubt.code for doubt in found.doubts}),
        host_bytes=ran.outcome.peak_memory_bytes,
        fits_in_bytes=rank.fits_in_bytes,
        bound_bytes=rank.bound_bytes,
        at_most_on_gpu_bytes=at_most.peak_reserved_bytes if rank.trace.bounds else 0,
    )


def _job(row: Row, python: str, engine: str) -> Job:
    words = [python, str(WORKLOAD), "--model", row.model, "--optimizer", row.optimizer]
    words += ["--batch-size", str(row.batch_size), "--zero-grad-mode", row.zero_grad_mode]
    script = f"#!/bin/sh\nexec {shlex.join(words)}\n".encode()
    environ = {
        **os.environ,
        "SLURM_JOB_ID": "1",
        "SLURMD_NODENAME": platform.node(),
        "XMEM_ENGINE": engine,
    }
    return Job(script, [], Path.cwd(), environ)
