"""What does docs/real-runs.md say? What `python -m benchmarks.real_runs` measured last, from its
results alone.

python -m benchmarks.real_runs.page [--data benchmarks/data/real_runs] [--out docs/real-runs.md]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.error_plot import error_plot
from benchmarks.real_runs import scores
from benchmarks.real_runs.runs import Result, load
from benchmarks.text_table import markdown_table

DATA = Path(__file__).parents[1] / "data" / "real_runs"
CAUSES = DATA / "causes.toml"
PAGE = Path(__file__).parents[2] / "docs" / "real-runs.md"
PLOT = "real-runs.svg"

HEAD = f"""# Estimates beside real runs of public code

<!-- Written by `python -m benchmarks.real_runs.page`; edit benchmarks/real_runs/page.py, not this file. -->

What others published of public repositories on real GPUs, against estimates of the unmodified scripts without one
(`python -m benchmarks.real_runs`; benchmarks/data/README.md has the columns). The error is (estimate - real) / real.
*exact* is within 0.05 %, *under* are estimates below that, *required below* are rows in which `required_bytes` is less
than there was; what lies outside of torch's allocator counts only where the figure has it. A job that is left alone
reserves more than it needs to run as well, so for reserved bytes that is no fault. *high* and *medium* are the
estimates' own confidence. A row more than 1 % off is listed with the cause, where one was found; rows of one command
that are off by one cause stand in one line, with the range of their figures. What had to be assumed of a source stands
at the head of its module in benchmarks/real_runs/sources.

Of margins, *measured* are those that promise something, *prior* all others ([accuracy](accuracy.md)): *below ground* is
how often the estimate with its margin was not enough, *stated at most* how often that may be, by the promise. The
interval takes rows to err one by one, which rows of one source do not.

![Error over the real figure, by source]({PLOT})
"""


def results(folder: Path) -> list[Result]:
    """Return all results in a folder, in the order of their sources."""
    return [result for path in sorted(folder.glob("*.jsonl")) for result in load(path).values()]


def page(found: Sequence[Result]) -> str:
    """Return the page."""
    return "\n".join([HEAD, *scores.lines(found, scores.read_causes(CAUSES), markdown_table), ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write docs/real-runs.md from the results of real runs"
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    found = results(arguments.data)
    arguments.out.write_text(page(found), encoding="utf-8")
    arguments.out.with_name(PLOT).write_text(error_plot(scores.points(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
