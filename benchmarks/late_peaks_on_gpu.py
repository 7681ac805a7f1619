"""Do scripts whose peak comes late need on a real GPU what they need on stand-ins, and does a dry
run say so?

    python -m benchmarks.late_peaks_on_gpu [--seconds 540] [--together N]   on a GPU: run what is missing, whole
    python -m benchmarks.late_peaks_on_gpu --compare [--python P]           anywhere: dry runs of the same, and a table
    python -m benchmarks.late_peaks_on_gpu --capped [--seconds 540]         on a GPU: again, with no more than they said

The scripts are those of tests/integration/framework_peaks, later_peaks and unseen_peaks, or their
twins. Measuring needs their packages and this repository, nothing of the product; a script whose
package is not there is a result, too. Where N share the GPU their own figures are the same.

DIR (benchmarks/data/ground-truth) gets scripts.jsonl, script_estimates.jsonl and
scripts_capped.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ground_truth import LEAST_SECONDS, OUT, append, last_words, read_lines, results
from tests.integration.framework_peaks.cases import FRAMEWORK_PEAKS
from tests.integration.later_peaks.cases import LATER_PEAKS
from tests.integration.unseen_peaks.cases import UNSEEN_PEAKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.integration.later_peaks.listing import Listing

WHOLE = Path(__file__).parents[1] / "tests" / "integration" / "later_peaks" / "whole.py"
HEADINGS = ("script", "verdict", "estimate/measured", "measured, MiB", "confidence")
LISTS = (FRAMEWORK_PEAKS, LATER_PEAKS, UNSEEN_PEAKS)

CUT_OFF = "cut off"
MOST_SECONDS = 150.0
"""Of one script. Some make a hundred thousand steps, and share the GPU with others."""


def scripts() -> Mapping[str, Listing]:
    """Return each script's list by its name, those that have a true peak."""
    return {name: each for each in LISTS for name, case in sorted(each.cases.items()) if case.truth}


def measure(names: Sequence[str], file: Path, seconds: float, together: int) -> None:
    """Run each of these scripts to its end, unless there is no time left to begin it."""
    deadline = time.monotonic() + seconds
    for found in results(lambda name: _measure(name, deadline), names, together):
        append(file, found)
        print(*found.values(), flush=True)


def run_capped(names: Sequence[str], out: Path, seconds: float, together: int) -> None:
    """Run again what has an estimate, with that as the limit of torch's allocator, and say how many
    of them live.
    """
    deadline, file = time.monotonic() + seconds, out / "scripts_capped.jsonl"
    done, measured = read_lines(file), _whole(out)
    caps = {
        name: line.get("promise", 0)
        for name, line in read_lines(out / "script_estimates.jsonl").items()
    }

    def run(name: str) -> dict[str, Any] | None:
        found = _measure(name, deadline, str(caps[name]))
        if found is None or found.get("error", "").startswith(CUT_OFF):
            return None
        return {**found, "cap_bytes": caps[name], "survived": "error" not in found}

    missing = [name for name in names if name in measured and caps.get(name) and name not in done]
    for found in results(run, missing, together):
        append(file, found)
        print(found["key"], found["cap_bytes"], found.get("error", "survived"), flush=True)
    ended = [line["survived"] for line in read_lines(file).values()]
    print(f"{sum(ended)} of {len(ended)} scripts survived, capped at what they were said to need")


def _measure(name: str, deadline: float, *most: str) -> dict[str, Any] | None:
    """Run one script to its end, on `most` bytes for torch; None: there was no time to begin."""
    started = time.monotonic()
    left = min(MOST_SECONDS, deadline - started)
    if left < LEAST_SECONDS:
        return None
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder, "nothing")
        nothing.mkdir()
        script = Path(folder, "train.py")
        script.write_text(scripts()[name].twin(name), encoding="utf-8")
        command = [sys.executable, WHOLE, script, nothing, *most]
        try:
            ran = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired:
            found = {"error": f"{CUT_OFF} after {left:.0f} s"}
        else:
            ended = ran.returncode == 0
            found = (
                json.loads(ran.stdout.splitlines()[-1])
                if ended
                else {"error": last_words(ran.stderr)}
            )
    return {"key": name, **found, "seconds": round(time.monotonic() - started, 1)}


def estimate(names: Sequence[str], out: Path, python: Path) -> None:
    """Run dry what was measured and has no answer yet, for the same GPU."""
    from benchmarks import gpus  # noqa: PLC0415 - the product is not needed to measure
    from tests.integration.later_peaks.measure import dry_run  # noqa: PLC0415

    file = out / "script_estimates.jsonl"
    done = read_lines(file)
    for name, real in _whole(out).items():
        card = gpus.named(real["gpu"])
        if name in names and name not in done and card is not None:
            with tempfile.TemporaryDirectory() as folder:
                answer = dry_run(scripts()[name], name, python, Path(folder), gpu=card[1])
            append(file, {"key": name, **asdict(answer)})
            print(name, dict(answer.peaks), file=sys.stderr, flush=True)


def _whole(out: Path) -> dict[str, dict[str, Any]]:
    """Return what was measured of the scripts that came to their end."""
    return {
        name: real
        for name, real in read_lines(out / "scripts.jsonl").items()
        if "error" not in real
    }


def table(out: Path) -> tuple[list[list[str]], Counter[str]]:
    """Return a row of `HEADINGS` for each script that has an answer, and how many there are of each
    verdict.
    """
    from tests.integration.later_peaks.measure import Answer  # noqa: PLC0415 - it needs the product
    from tests.integration.later_peaks.verdict import ratios, verdict  # noqa: PLC0415

    rows, verdicts, estimated = [], Counter[str](), read_lines(out / "script_estimates.jsonl")
    for name, real in sorted(_whole(out).items()):
        if name not in estimated:
            continue
        case = scripts()[name].cases[name]
        answer = Answer(**{key: value for key, value in estimated[name].items() if key != "key"})
        found = verdict(case, answer, real)
        verdicts[found] += 1
        compared = " ".join(f"{ratio:.3f}" for ratio in ratios(case, answer, real).values()) or "-"
        rows.append([name, found, compared, f"{real['allocated'] >> 20}", answer.confidence])
    return rows, verdicts


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the scripts of the lists of late peaks on a GPU, and compare"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--seconds", type=float, default=540, help="begin nothing that may go on for longer"
    )
    parser.add_argument(
        "--together", type=int, default=1, help="so many scripts share the GPU (default: 1)"
    )
    parser.add_argument("--only", default="", help="only the scripts whose name contains this")
    parser.add_argument(
        "--compare", action="store_true", help="dry runs of what was measured, and a table"
    )
    parser.add_argument("--capped", action="store_true", help="run again on what the dry run said")
    parser.add_argument(
        "--python",
        default=os.environ.get("XMEM_TEST_PYTHON"),
        help="the job's Python, for --compare",
    )
    arguments = parser.parse_args()
    file = arguments.out / "scripts.jsonl"
    chosen = [name for name in scripts() if arguments.only in name]
    if arguments.capped:
        run_capped(chosen, arguments.out, arguments.seconds, arguments.together)
        return 0
    if not arguments.compare:
        done = read_lines(file)
        measure(
            [name for name in chosen if name not in done],
            file,
            arguments.seconds,
            arguments.together,
        )
        return 0
    if arguments.python is None:
        parser.error(
            "--python or XMEM_TEST_PYTHON must name a Python with the torch that was measured"
        )
    from benchmarks.text_table import text_table  # noqa: PLC0415 - it is not needed to measure

    estimate(chosen, arguments.out, Path(arguments.python))
    rows, verdicts = table(arguments.out)
    print(
        "\n".join(
            [
                *text_table(HEADINGS, rows),
                ", ".join(f"{count} {each}" for each, count in verdicts.items()),
            ]
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
