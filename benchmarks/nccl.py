"""What does NCCL take of a GPU beside the CUDA context? From measurements to site-config/nccl.toml.

    python -m benchmarks.nccl [--out site-config/nccl.toml]

benchmarks/data/outside_allocator.csv has what nvidia-smi said on 8 x H100 and H200 before the model
was made. A row counts where NCCL had begun by then. GPU 0 of some also holds a bare context of each
other rank, which made a tensor there before it chose its own GPU: (GPU 0 - GPU 1) / (ranks - 1) is
what a bare context takes. Of one rank there are the runs of benchmarks/data/ground-truth with
DistributedDataParallel: what they held beyond the same run without.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ground_truth import OUT as GROUND_TRUTH
from benchmarks.ground_truth import read_lines
from xmem_slurm.sizing.nccl import FILE, MeasuredNccl, generation
from xmem_slurm.units import MIB

DATA = Path(__file__).parent / "data" / "outside_allocator.csv"
OUT = Path(__file__).parents[1] / "site-config" / FILE
ALIKE = 1.1
"""Generations of torch whose figures differ by less than this factor are one entry."""

HEAD = """\
# What NCCL takes of a GPU beside the CUDA context, with one communicator of all ranks on one node. Written by
# `python -m benchmarks.nccl` from benchmarks/data; do not edit. xmem_slurm/sizing/nccl.py says what it is used for.
schema_version = 1
"""

Row = dict[str, str]


def rows() -> list[Row]:
    """Return the measurements in which NCCL had begun, alike ones together, by generation."""
    with DATA.open(encoding="utf-8", newline="") as file:
        begun = [row for row in csv.DictReader(file) if row["nccl_begun"] == "yes"]
    return sorted(begun, key=lambda row: (row["gpu"], int(row["ranks"]), generation(row["torch"])))


def bare_mib(of: Iterable[Row]) -> list[float]:
    """Return what a bare context took, in MiB, where GPU 0 tells."""
    shares = [
        (int(row["gpu_0_mib"]) - int(row["used_mib"])) / max(1, int(row["ranks"]) - 1) for row in of
    ]
    return [share for share in shares if share > 0]


def entries(found: Sequence[Row]) -> list[tuple[MeasuredNccl, Sequence[Row]]]:
    """Return what was measured, each with its rows: the most that was used, less the least that was
    the context's.
    """
    groups: list[list[Row]] = []
    for row in found:
        last = groups[-1][0] if groups else {}
        alike = all(row[name] == last.get(name) for name in ("gpu", "ranks"))
        if not alike or not 1 / ALIKE < int(row["used_mib"]) / int(last["used_mib"]) < ALIKE:
            groups.append([])
        groups[-1].append(row)
    return [(_measured(group, min(bare_mib(group) or bare_mib(found))), group) for group in groups]


def _measured(group: Sequence[Row], bare: float) -> MeasuredNccl:
    most = max(int(row["most_mib"]) for row in group)
    first, last = group[0], group[-1]
    taken = int((most - bare) * MIB)
    return MeasuredNccl(
        first["gpu"],
        int(first["ranks"]),
        generation(first["torch"]),
        generation(last["torch"]),
        taken,
    )


def text(found: Sequence[Row]) -> str:
    """Return the file's text."""
    lines = [HEAD]
    for entry, group in entries(found):
        logs = sum(int(row["logs"]) for row in group)
        most = max(int(row["most_mib"]) for row in group)
        lines += _table(
            entry,
            f"{logs} logs of KellerJordan/modded-nanogpt: nvidia-smi shows at most {most} MiB",
        )
    for entry, count in alone():
        lines += _table(
            entry, f"benchmarks/data/ground-truth, beside the same without NCCL; runs: {count}"
        )
    return "\n".join(lines)


def _table(entry: MeasuredNccl, source: str) -> list[str]:
    return [
        "[[measured]]",
        f'gpu = "{entry.gpu}"',
        f"ranks = {entry.ranks}",
        f'since = "{_dotted(entry.since)}"',
        f'until = "{_dotted(entry.until)}"',
        f"bytes = {entry.bytes}",
        f'source = "{source}"',
        "",
    ]


def alone() -> list[tuple[MeasuredNccl, int]]:
    """Return what NCCL took of a GPU for a group of one process, and in how many runs of the ground
    truth.
    """
    runs = read_lines(GROUND_TRUTH / "runs.jsonl")
    taken: dict[tuple[str, str], list[int]] = {}
    for key, run in runs.items():
        without = runs.get(key.replace("_ddp", ""), {"error": "not measured"})
        if "_ddp" in key and "error" not in run and "error" not in without:
            more = _of_process(run) - _of_process(without)
            taken.setdefault((run["gpu"]["name"], run["versions"]["torch"]), []).append(more)
    return [
        (MeasuredNccl(gpu, 1, generation(torch), generation(torch), max(found)), len(found))
        for (gpu, torch), found in taken.items()
    ]


def _of_process(run: Mapping[str, Any]) -> int:
    return int(run["nvml_process_after_bytes"] - run["reserved_after_bytes"])


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write site-config/nccl.toml from the benchmarks' data"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.parse_args().out.write_text(text(rows()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
