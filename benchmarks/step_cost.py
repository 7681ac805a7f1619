"""What does the probe add to a training step that is made for real, and what does a skipped one
cost?

    XMEM_TEST_PYTHON=/path/to/python python -m benchmarks.step_cost [--rounds 9] [--steps 10]

The first table is of steps that are made: without a budget the probe skips nothing. Of each job
there are two processes on the same stand-ins, one with the probe, which make some steps in turn, so
that other programs of the machine have a like part in both. The table has the medians of all steps,
and of the rounds' ratios the median, the lowest and the highest. The target is 1.5.

Nearly all steps of a dry run are skipped: the second table is of those, the last `SKIPPED` of a run
with a budget, beside steps of the same job that are made without the probe. The targets are 0.3 ms
in the plain loop and 2 ms under Trainer and Lightning.

Times are CPU time of the process, with that of the thread that writes the trace. That Python needs
transformers, accelerate and lightning.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.text_table import text_table
from xmem_slurm.device.builder import build
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.site.loading import load_catalogue

WORKLOAD = Path(__file__).parent / "workloads" / "step.py"
JOBS = {"MLP, 12 layers": "mlp", "GPT-2 small, 8 x 1024": "gpt2"}
HEADINGS = ("a step of", "without", "with the probe", "ratio", "lowest", "highest")
STEPS = Path(__file__).parent / "workloads" / "skipped_step.py"
LOOPS = {
    "MLP, 2 layers": "plain",
    "GPT-2 small": "gpt2",
    "GPT-2 small, Trainer": "trainer",
    "GPT-2 small, Lightning": "lightning",
}
SKIPPED_HEADINGS = ("a step of", "made, without the probe", "skipped")
MADE, SKIPPED, BEFORE = 20, 500, 500
"""How many steps are timed, made ones and skipped ones; so many come before those."""
HOURS = 10
"""The budget of those: no end is in sight, so a run goes on as it is."""
WARM_UP = 5
"""Steps before the first that counts: an optimizer makes its state, memory is kept."""

Worker = subprocess.Popen[str]


@contextmanager
def worker(model: str, environ: Mapping[str, str]) -> Iterator[Worker]:
    """Within this, a process waits to be asked for steps."""
    command, pipe = [os.environ["XMEM_TEST_PYTHON"], str(WORKLOAD), model], subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.communicate()


def steps(process: Worker, count: int) -> list[float]:
    """Have so many steps made; return the CPU milliseconds of each."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return [float(each) for each in process.stdout.readline().split()]


def row(name: str, sides: Sequence[Mapping[str, str]], rounds: int, count: int) -> list[str]:
    """Measure one job, without the probe and with it."""
    taken: list[list[list[float]]] = [[], []]
    with worker(JOBS[name], sides[0]) as without, worker(JOBS[name], sides[1]) as probed:
        for process in (without, probed):
            steps(process, WARM_UP)
        for _ in range(rounds):
            for process, some in zip((without, probed), taken, strict=True):
                some.append(steps(process, count))
    medians = [statistics.median(step for some in side for step in some) for side in taken]
    by_round = [list(map(statistics.median, side)) for side in taken]
    ratios = [after / before for before, after in zip(*by_round, strict=True)]
    found = statistics.median(ratios), min(ratios), max(ratios)
    return [name, *(f"{each:.1f} ms" for each in medians), *(f"{each:.2f}" for each in found)]


def skipped_row(name: str, sides: Sequence[Mapping[str, str]]) -> list[str]:
    """Measure one loop: steps that are made, and steps that are skipped."""
    found = []
    for environ, before, last in zip(sides, (WARM_UP, BEFORE), (MADE, SKIPPED), strict=True):
        command = [os.environ["XMEM_TEST_PYTHON"], str(STEPS), LOOPS[name]]
        command += [str(before + last), str(last)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        found += [line.split()[1] for line in lines if line.startswith("xmem-step ")]
    return [name, *(f"{float(each):.2f} ms" for each in found)]


def main() -> int:
    """Measure and print the table."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    given = parser.parse_args()
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    asked = [os.environ["XMEM_TEST_PYTHON"], "-c", find]
    torch = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        gpu = gpu_environment.environment(load_catalogue()["l4"], 1, Path(folder), python_path=None)
        away = {"PYTHONPATH", "XMEM_PROBE", "XMEM_TRACE_DIR"}
        plain = {name: value for name, value in gpu.items() if name not in away}
        sides = (
            {**os.environ, **plain, "STAND_INS": str(build(Path(torch)))},
            {**os.environ, **gpu, **gpu_environment.preloaded(None)},
        )
        rows = [row(name, sides, given.rounds, given.steps) for name in JOBS if given.only in name]
        budget = {"XMEM_DEADLINE": str(time.monotonic() + HOURS * 3600)}
        sides = sides[0], {**sides[1], **budget}
        skipped = [skipped_row(name, sides) for name in LOOPS if given.only in name]
    print("\n".join([*text_table(HEADINGS, rows), "", *text_table(SKIPPED_HEADINGS, skipped)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
