"""Does a dry run say what the GPU measured, and where do the two first part?

For every measured run: a dry run of the same script for the same card, its peak against the
measured one, a replay of the measured history (whose error is the allocator model's alone), and the
first allocation at which the two histories differ, with the line of Python that made it.
"""

import gzip
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks import gpus
from benchmarks.campaign import IMAGE_MODELS, RECURRENT_MODEL, Config
from benchmarks.ground_truth import RUN, append, read_lines, trace_file
from benchmarks.published_metrics import quantile
from benchmarks.text_table import text_table
from xmem_slurm.allocator.fit import smallest_capacity
from xmem_slurm.allocator.replay import replay
from xmem_slurm.allocator.sizes import MIN_BLOCK_SIZE
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import XmemError
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Op, Trace
from xmem_slurm.trace_file import read as read_trace
from xmem_slurm.units import MIB, round_up

BUDGET = Budget(seconds=300)

HEADINGS = (
    "run",
    "measured MiB",
    "error %",
    "replay %",
    "context MiB",
    "catalogue",
    "parts at",
    "operator",
)
SUMMARY = (
    "kind",
    "runs",
    "same allocations",
    "reserved exact",
    "median %",
    "lowest %",
    "highest %",
    "promise enough",
    "least excess %",
    "median excess %",
    "highest excess %",
    "outside MiB",
    "catalogue MiB",
)
Pair = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""A run's key, what was measured, and the estimate."""


@dataclass(frozen=True)
class Moment:
    """One allocation of a history: its bytes, and those of all that lived when it was made, in
    whole blocks.
    """

    size: int
    live: int

    def __str__(self) -> str:
        return f"{self.size} with {self.live} live"


@dataclass(frozen=True)
class Parting:
    """The first difference of two histories: the allocation's number, what each did, and the GPU
    run's line of code.
    """

    allocation: int
    measured: str
    dry: str
    operator: str


def compare(chosen: Iterable[Config], out: Path, python: str, seconds: float) -> str:
    """Estimate what `out` lacks of the measured runs, as long as there is time, and return the
    tables.
    """
    deadline = time.monotonic() + seconds
    runs, done = read_lines(out / "runs.jsonl"), read_lines(out / "estimates.jsonl")
    for config in chosen:
        measured = runs.get(config.key)
        if (
            measured is None
            or "error" in measured
            or config.key in done
            or time.monotonic() > deadline
        ):
            continue
        append(
            out / "estimates.jsonl",
            _estimate(config, measured, trace_file(out, config.key), python),
        )
    return report(runs, read_lines(out / "estimates.jsonl"))


def _estimate(
    config: Config, measured: Mapping[str, Any], history: Path, python: str
) -> dict[str, Any]:
    started = time.monotonic()
    card = gpus.named(measured["gpu"]["name"], measured["gpu"]["total_bytes"])
    if card is None:
        return {"key": config.key, "reason": f"the GPU catalogue has no {measured['gpu']['name']}"}
    gpu = card[1].model_copy(update={k: v for k, v in measured["gpu"].items() if k != "name"})
    try:
        found = estimate(
            runner.run(DryRunOrder.of(job_of(config, python), gpu, BUDGET)).traces, card[0], gpu
        )
    except XmemError as error:
        return {"key": config.key, "reason": str(error)}
    rank = found.largest
    # A history does not say when the first kernel was launched; the same script did it after as
    # many requests.
    real = replace(read_trace(history), mallocs_before_launch=rank.trace.mallocs_before_launch)
    parting = first_parting(real, rank.trace, frames(history))
    return {
        "key": config.key,
        "date": datetime.now(UTC).date().isoformat(),
        "torch": rank.trace.torch_version,
        "gpu": card[0],
        "peak_reserved_bytes": rank.peak_reserved_bytes,
        "peak_allocated_bytes": rank.replay.peak_allocated_bytes,
        "fits_in_bytes": rank.fits_in_bytes,
        "bound_bytes": rank.bound_bytes,
        "margin_bytes": rank.margin_bytes,
        "outside_allocator_bytes": rank.outside_allocator_bytes,
        "replayed_history_bytes": replay(real).peak_reserved_bytes,
        "needed_by_history_bytes": smallest_capacity(real, replay(real)),
        "confidence": found.confidence,
        "doubts": sorted({doubt.code for doubt in found.doubts}),
        "parting": None if parting is None else vars(parting),
        "seconds": round(time.monotonic() - started, 1),
    }


def job_of(config: Config, python: str) -> Job:
    """Return the run as a job, as its script would be submitted."""
    words = [python, str(RUN), "--config", config.to_json()]
    environ = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": config.allocator}
    return Job(f"#!/bin/sh\nexec {shlex.join(words)}\n".encode(), [], Path.cwd(), environ)


def frames(history: Path) -> list[str]:
    """Return the line of Python that made each allocation of a measured run."""
    with gzip.open(history, "rt", encoding="utf-8") as file:
        found = json.load(file)["frames"]
    return [found["names"][number] for number in found["of_allocation"]]


def first_parting(measured: Trace, dry: Trace, operators: Sequence[str]) -> Parting | None:
    """Compare two histories, allocation by allocation; None if the dry one is the same, or a
    beginning of the other.

    Between two allocations the order of frees has no meaning: what counts is how much lives at
    each. A dry run may end early, when its steps no longer change the peak, or leave repeated ones
    out: they are the same until there.
    """
    until = dry.seen.whole_until if dry.seen is not None else None
    for number, (real, planned) in enumerate(zip_longest(moments(measured), moments(dry))):
        if planned is None or number == until:
            return None
        if real != planned:
            operator = operators[number] if number < len(operators) else "after the last"
            return Parting(number, str(real or "nothing"), str(planned), operator)
    return None


def in_blocks(size: int) -> int:
    """Return the bytes of the block that a request for `size` gets."""
    return round_up(size, MIN_BLOCK_SIZE)


def moments(history: Trace) -> Iterator[Moment]:
    """Yield each allocation of a history, with what lives when it is made.

    Sizes are those of blocks: some of a dry run stand for a workspace that may be larger
    (`Trace.bounds`), by other bytes of the same block; what stands for none is left out.
    """
    live = 0
    for op, number in history.events:
        asked = history.allocations[number].size
        size = in_blocks(asked)
        if asked in history.bounds and size == MIN_BLOCK_SIZE:
            continue
        if op == Op.ALLOC:
            yield Moment(size, live)
            live += size
        elif op == Op.FREE_COMPLETED:
            live -= size


def report(
    runs: Mapping[str, Mapping[str, Any]], estimates: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the scores by kind of job, and one line for each run."""
    both = pairs(runs, estimates)
    if not both:
        return "nothing measured, or nothing estimated"
    lines = text_table(SUMMARY, summary(both))
    lines += ["", *text_table(HEADINGS, [_line(*pair) for pair in both])]
    lines += [
        f"no measurement of {key}: {run['error']}" for key, run in runs.items() if "error" in run
    ]
    lines += [
        f"no estimate for {key}: {each['reason']}"
        for key, each in estimates.items()
        if "reason" in each
    ]
    return "\n".join(lines)


def pairs(
    runs: Mapping[str, Mapping[str, Any]], estimates: Mapping[str, Mapping[str, Any]]
) -> list[Pair]:
    """Return the runs that were both measured and estimated."""
    return [
        (key, run, estimates[key])
        for key, run in runs.items()
        if "error" not in run and key in estimates and "reason" not in estimates[key]
    ]


def kind_of(config: Mapping[str, Any]) -> str:
    """Say what kind of job a run is: what decides which of its buffers a library chooses."""
    if config["benchmark"]:
        return "images, cudnn.benchmark"
    if config["model"] == RECURRENT_MODEL:
        return "LSTM"
    if config["model"] in IMAGE_MODELS:
        return "images, channels_last" if config["channels_last"] else "images, contiguous"
    return "transformers"


def summary(both: Sequence[Pair]) -> list[list[str]]:
    """Return a row of `SUMMARY` for each kind, all of them first.

    Reserved bytes are compared without margin; the promise, with it, to what the measured history
    needs of memory.
    """
    kinds = {"all": list(both)}
    for pair in both:
        kinds.setdefault(kind_of(pair[1]["config"]), []).append(pair)
    return [_summary(kind, chosen) for kind, chosen in kinds.items()]


def outside_bytes(run: Mapping[str, Any]) -> int:
    """Return what a measured process held outside the allocator in the end: by the device, else by
    NVML's account.
    """
    if "outside_after_bytes" in run:
        return int(run["outside_after_bytes"])
    return int(run["nvml_process_after_bytes"] - run["reserved_after_bytes"])


def _summary(kind: str, chosen: Sequence[Pair]) -> list[str]:
    errors = [
        each["peak_reserved_bytes"] / run["peak_reserved_bytes"] - 1 for _, run, each in chosen
    ]
    excess = [promised(each) / each["needed_by_history_bytes"] - 1 for _, _, each in chosen]
    outside = [outside_bytes(run) for _, run, _ in chosen]
    return [
        kind,
        str(len(chosen)),
        str(sum(each["parting"] is None for _, _, each in chosen)),
        str(sum(error == 0 for error in errors)),
        *(
            f"{100 * value:+.2f}"
            for value in (quantile([abs(error) for error in errors], 0.5), min(errors), max(errors))
        ),
        str(sum(share >= 0 for share in excess)),
        *(f"{100 * value:+.1f}" for value in (min(excess), quantile(excess, 0.5), max(excess))),
        f"{min(outside) / MIB:.0f}-{max(outside) / MIB:.0f}",
        f"{max(each['outside_allocator_bytes'] for _, _, each in chosen) / MIB:.0f}",
    ]


def promised(each: Mapping[str, Any]) -> int:
    """Return what torch's allocator is said to need, margin included."""
    return int(each["fits_in_bytes"] + each["margin_bytes"])


def _line(key: str, run: Mapping[str, Any], each: Mapping[str, Any]) -> list[str]:
    ground, parting = run["peak_reserved_bytes"], each["parting"]
    return [
        key,
        f"{ground / MIB:.0f}",
        f"{100 * (each['peak_reserved_bytes'] / ground - 1):+.2f}",
        f"{100 * (each['replayed_history_bytes'] / ground - 1):+.2f}",
        f"{outside_bytes(run) / MIB:.0f}",
        f"{each['outside_allocator_bytes'] / MIB:.0f}",
        "never" if parting is None else f"{parting['allocation']}",
        ""
        if parting is None
        else f"{parting['operator']}: {parting['measured']}, dry {parting['dry']}",
    ]
