"""What do many small jobs really take of a GPU, and does the product say the same without one?

    python -m benchmarks.ground_truth [--seconds 540]           on a GPU: measure what is missing of the campaign
    python -m benchmarks.ground_truth --compare [--python P]    anywhere: estimate the same runs, print the tables
    python -m benchmarks.ground_truth --capped [--seconds 540]  on a GPU: run again, capped at the estimates: PEF

With --together N so many runs share the GPU, in a fraction of the time: their own figures are the
same, the device's are left out. Every run is a fresh process of this Python. Rerun any of the three
to go on where it stopped; none exceeds --seconds. Measuring needs torch, torchvision and
transformers (Python 3.9 or newer) and this repository; of the product one file,
probe/_xmem/outside_allocator.py.

DIR (benchmarks/data/ground-truth) gets runs.jsonl, traces/KEY.json.gz, estimates.jsonl and
capped.jsonl.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.campaign import Config, configs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

OUT = Path(__file__).parent / "data" / "ground-truth"
RUN = Path(__file__).parent / "workloads" / "campaign_run.py"

LEAST_SECONDS = 40.0
"""A run is not begun with less time than this: it would be cut off, and its time lost."""

MOST_ERROR_TEXT = 300

OF_THE_DEVICE = ("outside_before_bytes", "outside_after_bytes")
"""What a run measures of the whole device: wrong where others share it."""

_RAISED = re.compile(r"\w+(\.\w+)+: |\w+(Error|Exception|Interrupt)\b")
"""The line of a traceback that says what was raised; advice may follow it."""


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file of results by their key; the last line of a key holds. Without a file there are
    none.
    """
    if not path.is_file():
        return {}
    return {
        line["key"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def trace_file(out: Path, key: str) -> Path:
    """Return where the history of a run is kept."""
    return out / "traces" / f"{key}.json.gz"


def measure(chosen: Iterable[Config], out: Path, seconds: float, together: int = 1) -> None:
    """Measure every run that `out` lacks, as long as there is time.

    Where several share the GPU the large ones come last, one at a time, and nothing is said of what
    the device held.
    """
    deadline = time.monotonic() + seconds
    done = read_lines(out / "runs.jsonl")
    missing = [config for config in chosen if config.key not in done]
    shared = [config for config in missing if together == 1 or not config.large]
    for group, at_once in (
        (shared, together),
        ([config for config in missing if config not in shared], 1),
    ):
        for found in results(lambda config: _measure(config, out, deadline), group, at_once):
            _note(found, out, alone=together == 1)


def _measure(config: Config, out: Path, deadline: float) -> dict[str, Any] | None:
    """Measure one run, unless there is too little time; keep its history, and return the line for
    it.
    """
    started = time.monotonic()
    if deadline - started < LEAST_SECONDS:
        return None
    part = out / f"part-{config.key}.json.gz"
    found = _in_fresh_process(config, part, deadline - started, ["--measure", str(part)])
    if "error" not in found:
        with gzip.open(part, "rt", encoding="utf-8") as file:
            measured = json.load(file)
        found = measured.pop("run")
        _write_trace(trace_file(out, config.key), measured)
    part.unlink(missing_ok=True)
    return {
        "key": config.key,
        "config": asdict(config),
        **found,
        "seconds": round(time.monotonic() - started, 1),
    }


def results(
    run: Callable[[Any], dict[str, Any] | None], of: Iterable[Any], together: int
) -> Iterator[dict[str, Any]]:
    """Run so many at once and yield each result as it comes; None is none: there was no time to
    begin.
    """
    with ThreadPoolExecutor(together) as pool:
        for each in as_completed([pool.submit(run, one) for one in of]):
            found = each.result()
            if found is not None:
                yield found


def _note(found: dict[str, Any], out: Path, alone: bool) -> None:
    """Add one result to the file, and say it."""
    kept = {name: value for name, value in found.items() if alone or name not in OF_THE_DEVICE}
    append(out / "runs.jsonl", kept)
    print(
        found["key"],
        found.get("peak_reserved_bytes"),
        found.get("error", ""),
        found["seconds"],
        flush=True,
    )


def run_capped(
    chosen: Iterable[Config], out: Path, seconds: float, cap_at: str, together: int = 1
) -> None:
    """Run every estimated run again with its estimate as the allocator's limit, and say which of
    them live.

    `cap_at` is "promise" (what torch's allocator is said to need, and the margin) or "need".
    """
    deadline = time.monotonic() + seconds
    estimates, done = read_lines(out / "estimates.jsonl"), read_lines(out / "capped.jsonl")

    def run(config: Config) -> dict[str, Any] | None:
        estimate, left = estimates[config.key], deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return None
        cap = estimate["fits_in_bytes"] + (estimate["margin_bytes"] if cap_at == "promise" else 0)
        part = out / f"part-{config.key}.json.gz"
        found = _in_fresh_process(config, part, left, ["--measure", str(part), "--cap", str(cap)])
        part.unlink(missing_ok=True)
        return {
            "key": _capped_key(config, cap_at),
            "cap_bytes": cap,
            "survived": "error" not in found,
            **found,
        }

    missing = [
        config
        for config in chosen
        if "reason" not in estimates.get(config.key, {"reason": "none"})
        and _capped_key(config, cap_at) not in done
    ]
    for found in results(run, missing, together):
        append(out / "capped.jsonl", found)
        print(found["key"], found["cap_bytes"], found.get("error", "survived"), flush=True)
    ended = [
        line["survived"]
        for line in read_lines(out / "capped.jsonl").values()
        if line["key"].endswith(cap_at)
    ]
    if ended:
        share = sum(ended) / len(ended)
        print(
            f"{sum(ended)} of {len(ended)} runs survived, capped at their {cap_at}: PEF "
            f"{1 - share:.1%}"
        )


def _capped_key(config: Config, cap_at: str) -> str:
    return f"{config.key} at {cap_at}"


def _in_fresh_process(
    config: Config, part: Path, seconds: float, options: list[str]
) -> dict[str, Any]:
    """Run one configuration; return nothing, or {"error": its last words}."""
    part.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(RUN), "--config", config.to_json(), *options]
    try:
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"cut off after {seconds:.0f} s"}
    if done.returncode == 0:
        return {}
    return {"error": last_words(done.stderr) or f"ended with code {done.returncode}"}


def last_words(stderr: str) -> str:
    """Return the line of a failed run's output that says most: what was raised last, or the last
    one.
    """
    lines = [line for line in stderr.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1].strip()[:MOST_ERROR_TEXT]


def _write_trace(path: Path, measured: dict[str, Any]) -> None:
    """Keep the history in the product's own format, the frames beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=9, encoding="utf-8") as file:
        json.dump({**measured["trace"], "frames": measured["frames"]}, file, separators=(",", ":"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure, estimate and verify a campaign of small GPU jobs"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--seconds", type=float, default=540, help="begin nothing that may go on for longer"
    )
    parser.add_argument(
        "--together", type=int, default=1, help="so many runs share the GPU (default: 1)"
    )
    parser.add_argument("--only", default="", help="only the runs whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    parser.add_argument(
        "--compare", action="store_true", help="estimate what was measured, and print the tables"
    )
    parser.add_argument("--capped", action="store_true", help="run again, capped at the estimates")
    parser.add_argument("--cap-at", choices=("promise", "need"), default="promise")
    parser.add_argument(
        "--python",
        default=os.environ.get("XMEM_TEST_PYTHON"),
        help="the job's Python, for --compare",
    )
    arguments = parser.parse_args()
    chosen = [config for config in configs() if arguments.only in config.key]
    if arguments.list:
        print("\n".join(config.key for config in chosen))
    elif arguments.capped:
        run_capped(chosen, arguments.out, arguments.seconds, arguments.cap_at, arguments.together)
    elif arguments.compare:
        if arguments.python is None:
            parser.error(
                "--python or XMEM_TEST_PYTHON must name a Python with the torch that was measured"
            )
        from benchmarks.ground_truth_compare import compare  # noqa: PLC0415 - the product is not needed to measure

        print(compare(chosen, arguments.out, arguments.python, arguments.seconds))
    else:
        measure(chosen, arguments.out, arguments.seconds, arguments.together)
    return 0


if __name__ == "__main__":
    sys.exit(main())
