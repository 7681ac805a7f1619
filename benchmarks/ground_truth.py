"""What do many small jobs really take of a GPU, and does the product say the same without one?

    python -m benchmarks.ground_truth [--seconds 540]           on a GPU: measure what is missing of the campaign
    python -m benchmarks.ground_truth --compare [--python P]    anywhere: estimate the same runs, print the tables
    python -m benchmarks.ground_truth --capped [--seconds 540]  on a GPU: run again, capped at the estimates: PEF

Every run is a fresh process of this Python. Rerun any of the three to go on where it stopped; none exceeds --seconds.
Measuring needs torch, torchvision and transformers (Python 3.9 or newer) and this repository; of the product one file,
probe/_xmem/outside_allocator.py.

DIR (benchmarks/data/ground-truth) gets runs.jsonl, traces/KEY.json.gz, estimates.jsonl and capped.jsonl.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.campaign import Config, configs

if TYPE_CHECKING:
    from collections.abc import Iterable

OUT = Path(__file__).parent / "data" / "ground-truth"
RUN = Path(__file__).parent / "workloads" / "campaign_run.py"

LEAST_SECONDS = 40.0
"""A run is not begun with less time than this: it would be cut off, and its time lost."""

MOST_ERROR_TEXT = 300

_RAISED = re.compile(r"\w+(\.\w+)+: |\w+(Error|Exception|Interrupt)\b")
"""The line of a traceback that says what was raised; advice may follow it."""


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file of results by their key; the last line of a key holds. Without a file there are none."""
    if not path.is_file():
        return {}
    return {line["key"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def trace_file(out: Path, key: str) -> Path:
    """Return where the history of a run is kept."""
    return out / "traces" / f"{key}.json.gz"


def measure(chosen: Iterable[Config], out: Path, seconds: float) -> None:
    """Measure every run that `out` lacks, as long as there is time."""
    deadline = time.monotonic() + seconds
    done = read_lines(out / "runs.jsonl")
    for config in chosen:
        left = deadline - time.monotonic()
        if config.key in done or left < LEAST_SECONDS:
            continue
        started = time.monotonic()
        part = out / "part.json.gz"
        found = _in_fresh_process(config, part, left, ["--measure", str(part)])
        if "error" not in found:
            with gzip.open(part, "rt", encoding="utf-8") as file:
                measured = json.load(file)
            found = measured.pop("run")
            _write_trace(trace_file(out, config.key), measured)
            part.unlink()
        found = {"key": config.key, "config": asdict(config), **found, "seconds": round(time.monotonic() - started, 1)}
        append(out / "runs.jsonl", found)
        print(config.key, found.get("peak_reserved_bytes"), found.get("error", ""), found["seconds"], flush=True)


def run_capped(chosen: Iterable[Config], out: Path, seconds: float, cap_at: str) -> None:
    """Run every estimated run again with its estimate as the allocator's limit, and say which of them live.

    `cap_at` is "promise" (the peak and its margin) or "peak".
    """
    deadline = time.monotonic() + seconds
    estimates, done = read_lines(out / "estimates.jsonl"), read_lines(out / "capped.jsonl")
    for config in chosen:
        estimate, key = estimates.get(config.key), f"{config.key} at {cap_at}"
        left = deadline - time.monotonic()
        if estimate is None or "reason" in estimate or key in done or left < LEAST_SECONDS:
            continue
        cap = estimate["peak_reserved_bytes"] + (estimate["margin_bytes"] if cap_at == "promise" else 0)
        part = out / "part.json.gz"
        found = _in_fresh_process(config, part, left, ["--measure", str(part), "--cap", str(cap)])
        part.unlink(missing_ok=True)
        append(out / "capped.jsonl", {"key": key, "cap_bytes": cap, "survived": "error" not in found, **found})
        print(key, cap, found.get("error", "survived"), flush=True)
    ended = [line["survived"] for line in read_lines(out / "capped.jsonl").values() if line["key"].endswith(cap_at)]
    if ended:
        share = sum(ended) / len(ended)
        print(f"{sum(ended)} of {len(ended)} runs survived, capped at their {cap_at}: PEF {1 - share:.1%}")


def _in_fresh_process(config: Config, part: Path, seconds: float, options: list[str]) -> dict[str, Any]:
    """Run one configuration; return nothing, or {"error": its last words}."""
    part.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(RUN), "--config", config.to_json(), *options]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"cut off after {seconds:.0f} s"}
    if done.returncode == 0:
        return {}
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    words = (raised or lines or [f"ended with code {done.returncode}"])[-1]
    return {"error": words.strip()[:MOST_ERROR_TEXT]}


def _write_trace(path: Path, measured: dict[str, Any]) -> None:
    """Keep the history in the product's own format, the frames beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=9, encoding="utf-8") as file:
        json.dump({**measured["trace"], "frames": measured["frames"]}, file, separators=(",", ":"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure, estimate and verify a campaign of small GPU jobs")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing that may go on for longer")
    parser.add_argument("--only", default="", help="only the runs whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    parser.add_argument("--compare", action="store_true", help="estimate what was measured, and print the tables")
    parser.add_argument("--capped", action="store_true", help="run again, capped at the estimates")
    parser.add_argument("--cap-at", choices=("promise", "peak"), default="promise")
    parser.add_argument("--python", default=os.environ.get("XMEM_TEST_PYTHON"), help="the job's Python, for --compare")
    arguments = parser.parse_args()
    chosen = [config for config in configs() if arguments.only in config.key]
    if arguments.list:
        print("\n".join(config.key for config in chosen))
    elif arguments.capped:
        run_capped(chosen, arguments.out, arguments.seconds, arguments.cap_at)
    elif arguments.compare:
        if arguments.python is None:
            parser.error("--python or XMEM_TEST_PYTHON must name a Python with the torch that was measured")
        from benchmarks.ground_truth_compare import compare  # noqa: PLC0415 - the product is not needed to measure

        print(compare(chosen, arguments.out, arguments.python, arguments.seconds))
    else:
        measure(chosen, arguments.out, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
