"""Do the two engines agree? Small jobs through stand-in CUDA libraries and through real steps on
the CPU.

    python -m benchmarks.engines PYTHON [--only WORD]

PYTHON has a CUDA build of torch, with torchvision and transformers: the device engine needs it, and
with the same build for both, what differs is the engines' doing. Prints each job's peak reserved
bytes by either engine, the seconds, and how much the profile engine is off; each job runs with an
RTX 3060 as its GPU.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import XmemError
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate

WORKLOAD = Path(__file__).parent / "workloads" / "published.py"
SMALL = Path(__file__).parents[1] / "tests" / "data" / "profiles" / "job.py"
GPU = "rtx-3060"
BUDGET = Budget(seconds=240.0)

JOBS = (
    *(
        (str(SMALL), model, optimizer, zero_grad)
        for model, optimizers in (
            ("mlp", ("SGD", "Adam", "AdamW", "Adafactor")),
            ("attention", ("SGD", "Adam", "AdamW", "Adafactor")),
            ("cnn", ("SGD", "Adam", "AdamW", "Adafactor")),
        )
        for optimizer in optimizers
        for zero_grad in ("start", "backward")
    ),
    *(
        (str(WORKLOAD), "--model", model, "--optimizer", optimizer, "--batch-size", batch)
        for model, optimizer, batch in (
            ("distilgpt2", "AdamW", "2"),
            ("t5-small", "Adafactor", "2"),
            ("resnet18", "SGD", "16"),
            ("mobilenet_v2", "Adam", "16"),
            ("convnext_tiny", "AdamW", "4"),
        )
    ),
)


def peak(python: str, arguments: tuple[str, ...], engine: str) -> "tuple[int, float] | str":
    """Return (peak reserved bytes, seconds) of a job, or why there is none."""
    gpu, started = load_catalogue()[GPU], time.monotonic()
    text = f'#!/bin/sh\nexec "{python}" "$@"\n'.encode()
    job = Job(text, arguments, Path.cwd(), {**os.environ, "XMEM_ENGINE": engine})
    try:
        found = estimate(runner.run(DryRunOrder.of(job, gpu, BUDGET)).traces, GPU, gpu)
    except XmemError as error:
        return str(error)
    return found.largest.replay.peak_reserved_bytes, time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python")
    parser.add_argument("--only", default="", help="jobs whose command has this word")
    arguments = parser.parse_args()
    errors = []
    print(f"{'job':58} {'device MiB':>10} {'s':>5} {'profile MiB':>11} {'s':>5} {'off %':>7}")
    for job in JOBS:
        name = " ".join(word.lstrip("-") for word in job[1:])
        if arguments.only not in name:
            continue
        device = peak(arguments.python, job, "device")
        profile = peak(arguments.python, job, "profile")
        if isinstance(device, str) or isinstance(profile, str):
            print(f"{name:58} {device if isinstance(device, str) else profile}")
            continue
        off = 100 * (profile[0] - device[0]) / device[0]
        errors.append(abs(off))
        shown = (
            f"{device[0] / 2**20:10.0f} {device[1]:5.0f} {profile[0] / 2**20:11.0f} "
            f"{profile[1]:5.0f} {off:7.2f}"
        )
        print(f"{name:58} {shown}", flush=True)
    if not errors:
        sys.exit("no job ran under both engines")
    within = sum(error <= 2 for error in errors)
    print(
        f"median {statistics.median(errors):.2f} %, worst {max(errors):.2f} %, within 2 %: "
        f"{within} of {len(errors)}"
    )


if __name__ == "__main__":
    main()
