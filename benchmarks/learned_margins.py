"""Does a learned margin cover what it promises, however many jobs a script has, and how often is a
drift told falsely?

    python -m benchmarks.learned_margins [--draws 200]

Simulated with a known truth: scripts whose errors come of one of four distributions, each with 1, 5
or 50 jobs that differ from one another as much as scripts do, and of which a share runs out of
memory: those that needed the most. The margin that `xmem-slurm learn` finds from 60 such scripts is
held against jobs of scripts that it has not seen. "By the worst" is a margin by each script's worst
job, which grows with the number of jobs, where none ran out. A false alarm is a drift that is told
within a year of daily looks, 4 new scripts a day, though jobs are covered as often as was promised.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.text_table import markdown_table
from xmem_slurm.outcomes import learning
from xmem_slurm.outcomes.learning import Lesson
from xmem_slurm.sizing import conformal

SCRIPTS, NEXT, YEAR, A_DAY = 60, 200, 365, 4
DISTRIBUTIONS: Mapping[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 0.03),
    "skewed": lambda draw: draw.expovariate(40) - 0.01,
    "two kinds": lambda draw: (
        draw.gauss(0, 0.005) if draw.random() < 0.9 else draw.uniform(0.1, 0.3)
    ),
    "heavy tail": lambda draw: 0.01 * draw.paretovariate(2) - 0.01,
}
HEADINGS = (
    "errors",
    "jobs a script",
    "ran out, %",
    "promised, %",
    "covered, %",
    "margin, %",
    "by the worst, %",
)


class Simulated(NamedTuple):
    """Means over draws, as shares: what was promised, what was covered, the margin, and that by the
    worst jobs.
    """

    promised: float
    covered: float
    margin: float
    by_worst: float


def jobs_of(
    draw: random.Random, error: Callable[[random.Random], float], script: str, jobs: int
) -> Sequence[Lesson]:
    """Return what the jobs of one script say, none of which ran out."""
    own = error(draw)
    shortfalls = [own + (error(draw) - error(draw)) / 2 for _ in range(jobs)]
    return [
        Lesson(each, False, 0, script, "device", "A", frozenset(), 0.0, learning.COVERAGE)
        for each in shortfalls
    ]


def simulate(
    error: Callable[[random.Random], float], jobs: int, ran_out: float, draws: int
) -> Simulated:
    """Learn a margin from some scripts and hold it against others, so many times."""
    draw, found = random.Random(35), list[Simulated]()
    for _ in range(draws):
        said = [
            each for script in range(SCRIPTS) for each in jobs_of(draw, error, str(script), jobs)
        ]
        most = sorted(each.shortfall for each in said)[round((1 - ran_out) * len(said)) - 1]
        said = [replace(each, censored=each.shortfall > most) for each in said]
        learned = learning.margin(said)
        if learned is None or learned.probability is None:
            continue
        seen = [each for n in range(NEXT) for each in jobs_of(draw, error, f"next {n}", 1)]
        covered = sum(each.shortfall <= learned.share for each in seen) / NEXT
        worst = [max(each.shortfall for each in group) for group in learning.by_script(said)]
        by_worst = conformal.margin(worst, learned.probability) or 0.0
        found.append(Simulated(learned.probability, covered, learned.share, by_worst))
    return Simulated(*(statistics.fmean(column) for column in zip(*found, strict=True)))


def false_alarms(jobs: int, years: int) -> float:
    """Return in what share of years a drift is told although each job is covered as often as was
    promised.
    """
    draw, told = random.Random(36), 0
    for _ in range(years):
        said: list[Lesson] = []
        for day in range(YEAR):
            for script in range(A_DAY):
                name, own = (
                    f"{day} {script}",
                    draw.betavariate(19, 1),
                )  # scripts differ; the mean is the promise
                said += [_job(name, draw.random() > own) for _ in range(jobs)]
            said = said[-2 * learning.LAST * jobs :]
            if learning.drift(said).is_one:
                told += 1
                break
    return told / years


def _job(script: str, above: bool) -> Lesson:
    return Lesson(
        0.1 if above else 0.0, False, 0, script, "device", "A", frozenset(), 0.05, learning.COVERAGE
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=200, help="margins learned for each row [200]")
    draws = parser.parse_args().draws
    rows = []
    for name, error in DISTRIBUTIONS.items():
        for jobs in (1, 5, 50):
            for ran_out in (0.0, 0.2):
                shares = simulate(error, jobs, ran_out, draws)
                cells = [f"{100 * each:.1f}" for each in shares[: 3 if ran_out else None]]
                rows.append([name, str(jobs), f"{ran_out:.0%}", *cells, *["-"] * bool(ran_out)])
    print("\n".join(markdown_table(HEADINGS, rows)))
    for jobs in (1, 5):
        print(
            f"false alarms in a year, {jobs} jobs a script: "
            f"{false_alarms(jobs, max(20, draws // 4)):.1%}"
        )


if __name__ == "__main__":
    main()
