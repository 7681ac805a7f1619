"""Does a learned margin cover what it promises, however many jobs a script has, and how often is a
drift told falsely?

    python -m benchmarks.learned_margins [--draws 200]

Simulated with a known truth: scripts whose errors come of one of four distributions, each with 1, 5
or 50 jobs that differ from one another as much as scripts do. A GPU has room for so much more than
was estimated that a given share of jobs runs out of memory: all have the same, or each between a
fifth and nine fifths of a mean. Of a job that ran out, its room is all that is known. The margin
that `xmem-slurm learn` finds from 60 such scripts is held against what jobs of scripts need that it
has not seen. "By the worst" is a margin by each script's worst job, which grows with the number of
jobs, where none ran out. A false alarm is a drift that is told within a year of daily looks, 4 new
scripts a day, though jobs are covered as often as was promised.
"""

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.text_table import markdown_table
from xmem_slurm.outcomes import learning
from xmem_slurm.outcomes.learning import Lesson
from xmem_slurm.sizing import conformal

SCRIPTS, NEXT, YEAR, A_DAY = 60, 200, 365, 4
JOBS = (1, 5, 50)
RAN_OUT = (0.0, 0.05, 0.1, 0.2)
ROOMS: Mapping[str, Callable[[random.Random], float]] = {
    "alike": lambda _: 1.0,
    "vary": lambda draw: draw.uniform(0.2, 1.8),
}
SAMPLE = 20_000
"""Jobs by which a mean room is found: the standard error of the share that runs out is 0.3 %."""
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
    "rooms",
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


def needs_of(
    draw: random.Random, error: Callable[[random.Random], float], jobs: int
) -> Sequence[float]:
    """Return the shortfalls of the jobs of one script."""
    own = error(draw)
    return [own + (error(draw) - error(draw)) / 2 for _ in range(jobs)]


def mean_room(
    error: Callable[[random.Random], float], room: Callable[[random.Random], float], ran_out: float
) -> float:
    """Return the mean room of GPUs, in shares of the estimate, with which this share runs out."""
    if not ran_out:
        return math.inf
    draw = random.Random(34)
    least_means = sorted(needs_of(draw, error, 1)[0] / room(draw) for _ in range(SAMPLE))
    return least_means[round((1 - ran_out) * SAMPLE) - 1]


def simulate(
    error: Callable[[random.Random], float],
    room: Callable[[random.Random], float],
    jobs: int,
    ran_out: float,
    draws: int,
) -> Simulated:
    """Learn a margin from some scripts and hold it against others, so many times."""
    draw, mean, found = random.Random(35), mean_room(error, room, ran_out), list[Simulated]()
    for _ in range(draws):
        needs = {str(script): needs_of(draw, error, jobs) for script in range(SCRIPTS)}
        said = [
            _lesson(min(need, had), script, censored=need > had)
            for script, needed in needs.items()
            for need, had in ((need, mean * room(draw)) for need in needed)
        ]
        learned = learning.margin(said)
        if learned is None or learned.probability is None:
            continue
        seen = [needs_of(draw, error, 1)[0] for _ in range(NEXT)]
        covered = sum(need <= learned.share for need in seen) / NEXT
        by_worst = conformal.margin(list(map(max, needs.values())), learned.probability) or 0.0
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
                said += [
                    _lesson(0.1 if draw.random() > own else 0.0, name, margin=0.05)
                    for _ in range(jobs)
                ]
            said = said[-2 * learning.LAST * jobs :]
            if learning.drift(said).is_one:
                told += 1
                break
    return told / years


def _lesson(shortfall: float, script: str, *, censored: bool = False, margin: float = 0) -> Lesson:
    promise = learning.COVERAGE
    return Lesson(shortfall, censored, 0, script, "device", "A", frozenset(), margin, promise)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=200, help="margins learned for each row [200]")
    draws = parser.parse_args().draws
    rows = []
    for (name, error), jobs, ran_out in itertools.product(DISTRIBUTIONS.items(), JOBS, RAN_OUT):
        for rooms, room in ROOMS.items() if ran_out else [("-", ROOMS["alike"])]:
            shares = simulate(error, room, jobs, ran_out, draws)
            cells = [f"{100 * each:.1f}" for each in shares[: 3 if ran_out else None]]
            head = [name, str(jobs), rooms, f"{ran_out:.0%}"]
            rows.append([*head, *cells, *["-"] * bool(ran_out)])
    print("\n".join(markdown_table(HEADINGS, rows)))
    for jobs in JOBS:
        print(
            f"false alarms in a year, {jobs} jobs a script: "
            f"{false_alarms(jobs, max(20, draws // 4)):.1%}"
        )


if __name__ == "__main__":
    main()
