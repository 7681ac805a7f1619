"""What do plans and workspaces of the job's own cuDNN change in an estimate?

    python -m benchmarks.cudnn_plans --python P [--gpu h200] [--seconds 540] [--only WORDS]    estimate what is missing
    python -m benchmarks.cudnn_plans                                                           print the tables

The image models of the ground-truth campaign, estimated twice for one GPU: with the cuDNN that is
installed beside the torch of P (9.8 or newer: NVIDIA's wheels of cuDNN and cuBLAS), and as if there
were none. No GPU is needed or used: this compares two estimates, not an estimate and a measurement.
benchmarks/data/cudnn_plans.jsonl keeps the results.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.campaign import IMAGE_MODELS, Config, configs
from benchmarks.ground_truth import append, read_lines
from benchmarks.ground_truth_compare import BUDGET, job_of
from benchmarks.published_metrics import quantile
from benchmarks.text_table import markdown_table, text_table
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import XmemError
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.units import MIB

DATA = Path(__file__).parent / "data" / "cudnn_plans.jsonl"
HEADINGS = ("run", "without MiB", "with MiB", "change %", "allocated, change %")


def image_configs() -> list[Config]:
    """Return the campaign's runs of convolutional networks that need no compiler."""
    return [each for each in configs() if each.model in IMAGE_MODELS and not each.compiled]


def run(chosen: Iterable[Config], python: str, gpu_name: str, seconds: float, data: Path) -> None:
    """Estimate what `data` lacks, as long as there is time."""
    deadline = time.monotonic() + seconds
    gpu, done = load_catalogue()[gpu_name], read_lines(data)
    release, wheel = _release(python, "torch"), _release(python, "nvidia_cudnn_cu*")
    library = ".".join(wheel.split(".")[:3])  # the fourth number is the wheel's own
    for config in chosen:
        key = f"{config.key} on {gpu_name}, torch {release}"
        if key in done or time.monotonic() > deadline:
            continue
        job = job_of(config, python)
        without = Job(
            job.script, job.arguments, job.folder, {**job.environ, "XMEM_DEVICE_CUDNN": ""}
        )
        found = {"without": _one(without, gpu_name, gpu), "with": _one(job, gpu_name, gpu)}
        line = {
            "key": key,
            "run": config.key,
            "gpu": gpu_name,
            "torch": release,
            "cudnn": library,
            **found,
        }
        append(data, line)
        print(
            key,
            *(each.get("reserved_bytes", each.get("reason")) for each in found.values()),
            flush=True,
        )


def _release(python: str, package: str) -> str:
    """Return the version of a package that a Python has, without importing it; "" where it has
    none.
    """
    found = Path(python).parents[1].glob(f"lib/python3*/site-packages/{package}-*.dist-info")
    return next((each.stem.partition("-")[2] for each in found), "")


def _one(job: Job, gpu_name: str, gpu: Gpu) -> dict[str, Any]:
    started = time.monotonic()
    try:
        ran = runner.run(DryRunOrder.of(job, gpu, BUDGET))
        found = estimate(ran.traces, gpu_name, gpu)
    except XmemError as error:
        return {"reason": str(error)}
    peak = found.largest.replay
    return {
        "reserved_bytes": peak.peak_reserved_bytes,
        "allocated_bytes": peak.peak_allocated_bytes,
        "doubts": sorted(
            {
                f"{each.code}: {each.detail}"
                for each in found.doubts
                if each.code.startswith("cudnn-")
            }
        ),
        "seconds": round(time.monotonic() - started, 1),
        "host_bytes": ran.outcome.peak_memory_bytes,
    }


def tables(data: Path = DATA) -> dict[str, list[str]]:
    """Return a Markdown table for each GPU and library that the data have, and what it says in one
    line.
    """
    return {
        title: [*markdown_table(HEADINGS, map(_cells, of)), "", _summary(of)]
        for title, of in _groups(data).items()
    }


def changes(release: str, data: Path = DATA) -> list[tuple[str, float]]:
    """Return each run of that release of torch, and by what share of its peak of reserved bytes the
    plans change it.
    """
    return [
        (line["run"], _change(line, "reserved_bytes") / 100)
        for group in _groups(data).values()
        for line in group
        if line["torch"] == release
    ]


def _groups(data: Path) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for line in read_lines(data).values():
        if "reason" in line["with"] or "reason" in line["without"]:
            continue
        groups.setdefault(
            f"{line['gpu']}, torch {line['torch']}, {_library(line['cudnn'])}", []
        ).append(line)
    return groups


def _library(version: str) -> str:
    return f"cuDNN {version}" if version else "no plans"


def _change(line: Mapping[str, Any], what: str) -> float:
    return 100 * (float(line["with"][what]) / float(line["without"][what]) - 1)


def _cells(line: Mapping[str, Any]) -> list[str]:
    reserved = [f"{line[which]['reserved_bytes'] / MIB:.0f}" for which in ("without", "with")]
    changes = [f"{_change(line, what):+.1f}" for what in ("reserved_bytes", "allocated_bytes")]
    return [line["run"], *reserved, *changes]


def _summary(group: Sequence[Mapping[str, Any]]) -> str:
    changes = [_change(line, "reserved_bytes") for line in group]
    host = [(line["with"]["host_bytes"] - line["without"]["host_bytes"]) / MIB for line in group]
    median = quantile([abs(each) for each in changes], 0.5)
    return (
        f"{len(group)} runs: the peak changes by {median:.1f} % in the median, by "
        f"{min(changes):+.1f} to "
        f"{max(changes):+.1f} % at the ends; host memory by {quantile(host, 0.5):+.0f} MiB in the "
        "median."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Estimate convolutional networks with and without their cuDNN's plans"
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=None,
        help="the job's Python, with cuDNN's wheel; else print the tables",
    )
    parser.add_argument("--gpu", default="h200", help="an entry of the GPU catalogue")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing after so long")
    parser.add_argument("--only", default="", help="only the runs whose name contains this")
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.python is not None:
        chosen = [config for config in image_configs() if arguments.only in config.key]
        run(
            chosen,
            str(arguments.python.absolute()),
            arguments.gpu,
            arguments.seconds,
            arguments.data,
        )
    for title, group in _groups(arguments.data).items():
        print("\n".join(["", title, *text_table(HEADINGS, map(_cells, group)), _summary(group)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
