"""Is an answer the same where others have the CPUs? One job dry, on this machine as it is and
beside busy processes.

    python -m benchmarks.busy_machine --python JOB_PYTHON [--busy 40] [--answers 20] [--at-once 4]
    [SCRIPT]

Prints for both how many answers there were of each kind (bytes allocated and reserved at most, what
it fits on, confidence, steps, how the run ended), the CPU seconds of one and how long it took. Ends
with 1 if the busy machine gave an answer that the other did not.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.text_table import text_table

SCRIPT = Path(__file__).parents[1] / "examples" / "gpt2" / "train.py"
_ONE = """
import resource, sys
from pathlib import Path
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
gpu = load_catalogue()["a100-sxm4-80gb"]
job = Job(f"#!/bin/sh\\nexec {sys.argv[1]} {sys.argv[2]}\\n".encode(), [], Path.cwd(), {"PATH": "/usr/bin:/bin"})
try:
    found = estimate(runner.run(DryRunOrder.of(job, gpu, Budget())).traces, "a100", gpu)
    rank = found.largest
    trace = rank.trace
    peaks = rank.replay.peak_allocated_bytes, rank.peak_reserved_bytes, rank.fits_in_bytes
    print(*peaks, found.confidence, trace.state, trace.steps)
except NoEstimate as error:
    print(error)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used))
"""


def one_answer(python: Path, script: Path) -> tuple[str, float, float]:
    """Run a script dry in a process of its own; return what came of it, its CPU seconds, and
    seconds on the wall.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _ONE, str(python), str(script)]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    answer, used = ran.stdout.splitlines()[-2:]
    return answer, float(used), time.monotonic() - started


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes busy within this, none of which gives way."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def answers(
    ask: Callable[[], tuple[str, float, float]], count: int, at_once: int
) -> list[tuple[str, float, float]]:
    """Ask so often, so many at once."""
    with ThreadPoolExecutor(at_once) as pool:
        return [each.result() for each in [pool.submit(ask) for _ in range(count)]]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--python", type=Path, required=True, help="a job's Python, with a CUDA build of torch"
    )
    parser.add_argument("--busy", type=int, default=40)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("script", nargs="?", type=Path, default=SCRIPT)
    wanted = parser.parse_args()

    def ask() -> tuple[str, float, float]:
        return one_answer(wanted.python, wanted.script.resolve())

    quiet = answers(ask, 3, 1)
    with busy(wanted.busy):
        loaded = answers(ask, wanted.answers, wanted.at_once)
    rows = []
    for name, found in (("as it is", quiet), (f"beside {wanted.busy} busy processes", loaded)):
        for answer, count in Counter(answer for answer, _, _ in found).items():
            cpu = statistics.median(used for each, used, _ in found if each == answer)
            wall = statistics.median(seconds for each, _, seconds in found if each == answer)
            rows.append([name, str(count), answer, f"{cpu:.1f}", f"{wall:.0f}"])
    print(
        "\n".join(
            text_table(
                ("machine", "answers", "bytes, confidence, end, steps", "CPU s", "wall s"), rows
            )
        )
    )
    sys.exit(not {answer for answer, _, _ in loaded} <= {answer for answer, _, _ in quiet})


if __name__ == "__main__":
    main()
