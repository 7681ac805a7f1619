"""What does a process hold of each kind of GPU of a site outside torch's allocator? Measured there,
by a Slurm job each.

The figures are a fragment of the site file, `[option.NAME.measured]`, which goes before the GPU
catalogue's. Each is written as it comes, so a calibration that was broken off goes on with the
options that lack theirs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from xmem_slurm.cluster import client
from xmem_slurm.errors import SlurmError
from xmem_slurm.rewriting import dialect
from xmem_slurm.site.schema import NCCL_RANKS, Measured, Site
from xmem_slurm.units import MIB, round_up

_JOB = Path(__file__).resolve().parents[1] / "probe" / "_xmem" / "outside_allocator.py"
_MINUTES = 5
"""A job's time limit: importing torch from a network file system, and half a minute of work."""


@dataclass(frozen=True)
class CalibrationJob:
    """What is run for an option: `command`, srun's words; Slurm is to begin it within `seconds`."""

    option: str
    command: tuple[str, ...]
    seconds: int

    def __str__(self) -> str:
        """Show the command as a person would type it."""
        return " ".join([*self.command[:-2], str(_JOB)])


def jobs(site: Site, python: str, seconds: int) -> list[CalibrationJob]:
    """Return a job for each option for whole GPUs that some node has and that was not measured.

    It asks for two GPUs where a node has them, so that NCCL can be measured; not of MIG instances,
    which are no peers.
    """
    source = _JOB.read_text(encoding="utf-8")
    measuring = []
    for name, option in site.option.items():
        groups = [group for group in site.nodes if name in group.gpus]
        if option.share is not None or not groups or option.measured is not None:
            continue
        group = max(groups, key=lambda nodes: nodes.gpus[name])
        gpus = min(NCCL_RANKS, group.gpus[name])
        words = [
            "srun",
            "--job-name=xmem-calibrate",
            "--nodes=1",
            "--ntasks=1",
            f"--time={_MINUTES}",
        ]
        words += [
            f"--immediate={seconds}",
            f"--partition={group.partitions[0]}",
            *dialect.words(option, site.dialect, gpus),
        ]
        measuring.append(CalibrationJob(name, (*words, python, "-c", source), seconds))
    return measuring


def run(wanted: Iterable[CalibrationJob]) -> Iterator[tuple[str, Measured | SlurmError]]:
    """Run the jobs, all at once, and yield each option's figures in order, or why there are
    none.
    """
    listed = list(wanted)
    with ThreadPoolExecutor(max(1, len(listed))) as pool:
        for job, outcome in zip(listed, pool.map(_run, listed), strict=True):
            yield job.option, outcome


def _run(job: CalibrationJob) -> Measured | SlurmError:
    try:
        printed = client.run(job.command, job.seconds + 60.0 * _MINUTES + 30)
        return read(printed)
    except SlurmError as error:
        return error


def read(printed: str) -> Measured:
    """Read what the job printed; its last line counts.

    The larger of what CUDA says of the whole GPU and what NVML says of the process counts: each
    leaves something out.

    Raises:
        SlurmError: it is not what the job prints.
    """
    try:
        measurement: Mapping[str, Any] = json.loads(printed.strip().rpartition("\n")[2])
        context = round_up(
            max(measurement["device_after"], measurement["process_after"] or 0), 2 * MIB
        )
        return Measured(
            context_bytes=context,
            nccl_bytes=measurement["nccl"] or None,
            source=_source(measurement),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SlurmError(
            f"srun: the job printed no measurement ({type(error).__name__}: {error})"
        ) from error


def _source(measurement: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in measurement["versions"].items())
    nvml, nccl = "NVML does not say", "NCCL not measured"
    if measurement["process_after"] is not None:
        nvml = f"NVML {measurement['process_after']}"
    if measurement["nccl"]:
        nccl = f"NCCL with {measurement['nccl_ranks']} ranks"
    before = f"{measurement['device_before']} before the first allocation"
    return (
        f"measured {date.today().isoformat()} on {measurement['gpu']['name']} by `xmem-slurm site "
        "calibrate`: "
        f"CUDA {measurement['device_after']} after training steps, {before}, {nvml}; {nccl}; "
        f"{versions}"
    )


def fragment(option: str, measured: Measured) -> str:
    """Return an option's figures as they stand in a site file, to be added at its end."""
    # JSON's strings are TOML's basic strings.
    lines = [
        "",
        f"[option.{json.dumps(option)}.measured]",
        f"context_bytes = {measured.context_bytes}",
    ]
    lines += [f"nccl_bytes = {measured.nccl_bytes}"] if measured.nccl_bytes is not None else []
    return "\n".join([*lines, f"source = {json.dumps(measured.source, ensure_ascii=False)}", ""])
