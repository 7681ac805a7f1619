"""What do the public scripts of docs/coverage.md really take of a GPU, as they are and to their own
end?

    python -m benchmarks.coverage_on_gpu pack CLONES FOLDER              anywhere: copies of what runs dry on one GPU
    python -m benchmarks.coverage_on_gpu run FOLDER [--seconds 500]      on a GPU: run what has no result yet
    python -m benchmarks.coverage_on_gpu table                           anywhere: beside what their dry runs said

A copy is of the commit that ran dry, and the same recipes make its data.
benchmarks/data/coverage_on_gpu.jsonl gets a line a script, but for those that fail there, as for
want of a package. Scripts without an end are ended after MOST_SECONDS: what they held until then is
the least that they need. Where N share the GPU (--together N) their own figures are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.ground_truth import LEAST_SECONDS, append, last_words, read_lines, results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.coverage import Result

HERE = Path(__file__).parent
DATA = HERE / "data" / "coverage_on_gpu.jsonl"
WATCH = HERE / "workloads" / "peaks_watch"
HEADINGS = ("script", "ended", "GPU: allocated / reserved, MiB", "dry run", "ratio", "confidence")

TO_ITS_END, CUT_OFF = "yes", "cut off"
MOST_SECONDS = 120.0
LARGEST_FILE = 1 << 19
"""Of a copy, bytes: pictures for a README and weights are no part of a script."""

COMMANDS = """
for each in python accelerate; do
    eval "$each() { PYTHONPATH=$WATCH:\\$PYTHONPATH:$PACKAGES command $each \\"\\$@\\"; }"
done
"""
"""Where a command sets PYTHONPATH itself the watch must be on it, too."""

LOCKS: defaultdict[Path, Lock] = defaultdict(Lock)
MADE: defaultdict[Path, set[str]] = defaultdict(set)
"""Several scripts of a copy may have the same data: made once, by one at a time."""

TOLERANCE = 0.02
"""Of allocated bytes, as in the lists of tests/integration/later_peaks."""


class Agreement(NamedTuple):
    """How many scripts were measured, whole, within the tolerance, "high", of these too low, and
    too low in all.
    """

    measured: int
    whole: int
    within: int
    high: int
    high_and_low: int
    low: int


def pack(clones: Path, folder: Path) -> None:
    """Copy each script that has an estimate and needs one GPU; jobs.json says how each is run."""
    from benchmarks import coverage  # noqa: PLC0415 - it needs the product, a run on a GPU does not

    found, jobs = coverage.results(), []
    for script in coverage.scripts():
        if script.gpus != 1 or script.key not in found or not found[script.key].ran:
            continue
        if not (clones / script.repository).exists():
            print(f"no clone: {script.repository}", file=sys.stderr)
            continue
        copy = folder / script.repository.replace("/", "-") / "repository"
        if not copy.is_dir():
            commit = coverage.check_out(clones / script.repository, copy)
            assert commit == found[script.key].commit, (
                f"{script.repository}: another commit ran dry"
            )
            for file in copy.rglob("*"):
                if file.is_file() and not file.is_symlink() and file.stat().st_size > LARGEST_FILE:
                    file.unlink()
        job = {
            "key": script.key,
            "folder": str((copy / script.folder).relative_to(folder)),
            "command": script.command,
        }
        jobs.append({**job, "data": script.data, "setup": script.setup})
    jobs.sort(
        key=lambda job: (found[job["key"]].confidence != "high", not found[job["key"]].reached_end)
    )
    (folder / "jobs.json").write_text(json.dumps(jobs, indent=1), encoding="utf-8")
    print(f"{len(jobs)} scripts")


def run(folder: Path, out: Path, only: str, seconds: float, together: int) -> None:
    """Run on the GPU what has no line in `out`, unless there is no time left to begin it."""
    deadline, done = time.monotonic() + seconds, read_lines(out)
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    missing = [job for job in jobs if job["key"] not in done and only in job["key"]]
    for found in results(lambda job: _run(job, folder.resolve(), deadline), missing, together):
        print(*found.values(), flush=True)
        if found["ended"] in (TO_ITS_END, CUT_OFF) and found.get("reserved"):
            append(out, found)


def _run(job: dict[str, Any], top: Path, deadline: float) -> dict[str, Any] | None:
    started = time.monotonic()
    if deadline - started < LEAST_SECONDS:
        return None
    folder = top / job["folder"]
    peaks = top / "peaks" / re.sub(r"\W+", "-", job["key"])[:200]
    peaks.mkdir(parents=True, exist_ok=True)
    home = top / Path(job["folder"]).parts[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {
        **os.environ,
        "PATH": path,
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PEAKS_FOLDER": str(peaks),
    }
    environ |= {"WATCH": str(WATCH), "PACKAGES": os.environ.get("PYTHONPATH", "")}
    for entry in job["data"]:
        recipe, _, place = entry.partition(":")
        data = (folder / place).resolve()
        with LOCKS[home]:
            if data.exists() and recipe in MADE[data]:
                continue
            MADE[data].add(recipe)
            made = subprocess.run(
                [sys.executable, HERE / "coverage_data.py", recipe, data],
                cwd=top, env=environ, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if made.returncode:
            return {"key": job["key"], "ended": f"data: {last_words(made.stderr)}"}
    if job["setup"]:
        subprocess.run(["bash", "-c", job["setup"]], check=True, cwd=folder, env=environ)
    began = time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", f"{COMMANDS}\n{job['command']}"], cwd=folder, env=environ,
        start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            stderr = process.communicate(timeout=min(MOST_SECONDS, deadline - began))[1]
            ended = (
                last_words(stderr) or f"code {process.returncode}"
                if process.returncode
                else TO_ITS_END
            )
        except subprocess.TimeoutExpired:
            ended = CUT_OFF
        finally:
            _end(process.pid)
    held = [json.loads(file.read_text(encoding="utf-8")) for file in peaks.glob("*.json")]
    most = max(held, key=lambda each: each["reserved"], default={})
    return {
        "key": job["key"],
        **most,
        "ended": ended,
        "seconds": round(time.monotonic() - began, 1),
    }


def _end(group: int) -> None:
    """End what a script has left running."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def table(said: Mapping[str, Result]) -> list[list[str]]:
    """Return a row of `HEADINGS` for each script that was measured, by what its dry run said."""
    rows = []
    for key, real in sorted(read_lines(DATA).items()):
        dry = said[key]
        found = [
            (real["allocated"], dry.allocated_bytes or 0),
            (real["reserved"], dry.peak_bytes or 0),
        ]
        on_gpu, dry_run = (
            " / ".join(f"{each / 2**20:.0f}" for each in column)
            for column in zip(*found, strict=True)
        )
        ratios = " / ".join(f"{count / true:.3f}" for true, count in found)
        rows.append(
            [f"`{key}`".replace("|", "\\|"), real["ended"], on_gpu, dry_run, ratios, dry.confidence]
        )
    return rows


def agreement(said: Mapping[str, Result]) -> Agreement:
    """Count the scripts that were measured by what their dry runs said."""
    real = read_lines(DATA)
    ratios = {
        key: (said[key].allocated_bytes or 0) / each["allocated"] for key, each in real.items()
    }
    low = [key for key, ratio in ratios.items() if ratio < 1 - TOLERANCE]
    return Agreement(
        len(real),
        sum(each["ended"] == TO_ITS_END for each in real.values()),
        sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios.values()),
        sum(said[key].confidence == "high" for key in real),
        sum(said[key].confidence == "high" for key in low),
        len(low),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the public scripts of docs/coverage.md on a GPU"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("clones", type=Path)
    packing.add_argument("folder", type=Path)
    running = verbs.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--out", type=Path, default=DATA)
    running.add_argument("--only", default="", help="only the scripts whose key contains this")
    running.add_argument(
        "--seconds", type=float, default=500, help="begin nothing that may go on for longer"
    )
    running.add_argument(
        "--together", type=int, default=1, help="so many scripts share the GPU (default: 1)"
    )
    verbs.add_parser("table")
    arguments = parser.parse_args()
    if arguments.verb == "pack":
        pack(arguments.clones.resolve(), arguments.folder.resolve())
    elif arguments.verb == "run":
        run(arguments.folder, arguments.out, arguments.only, arguments.seconds, arguments.together)
    else:
        from benchmarks import coverage  # noqa: PLC0415 - it needs the product, a run on a GPU does not
        from benchmarks.text_table import text_table  # noqa: PLC0415 - a run needs no table

        print("\n".join(text_table(HEADINGS, table(coverage.results()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
