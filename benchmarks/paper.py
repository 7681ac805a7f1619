"""The evaluation of xMem (arXiv 2510.21048, section 4) as a command, with this project's two
engines in it.

    python -m benchmarks.paper [--out DIR] [--python JOB_PYTHON]
    python -m benchmarks.paper --design anova | monte-carlo [--count 100] [--seed 0]

The first prints the paper's table (MRE: the median relative error; PEF: the probability of
estimation failure; MCP: the memory conservation potential; definitions in `published_metrics`) for
the runs of its ANOVA and of its Monte Carlo experiment, and for measurements of our own where there
are some: both engines, PyTorch's MemTracker, the rule of `accelerate estimate-memory`, a static sum
of DNNMem's kind, and what xMem, DNNMem, SchedTune and LLMem said of the same runs. Then how much of
the error each factor explains, and the plot of PEF over MRE. It reads benchmarks/data; with
--python (torch 2.6, torchvision, transformers) it asks the tools that run on fake tensors what is
missing there.

The second prints an experiment of that kind, a command line of workloads/published.py a run, to be
measured on a GPU.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gpus, ground_truth_compare, published_dry_runs, published_rows
from benchmarks.ground_truth import OUT as GROUND_TRUTH
from benchmarks.ground_truth import read_lines
from benchmarks.published_dry_runs import Result
from benchmarks.published_metrics import Judged, score
from benchmarks.published_rows import TOOLS, Row
from benchmarks.published_runs import DATA, HEADINGS, cells, judge
from benchmarks.quadrant_plot import Point, quadrant_plot
from benchmarks.text_table import markdown_table, text_table
from xmem_slurm.dryrun import gpu_environment

RELEASE = "2.6.0"
"""torch's, of the published runs."""
ENGINES = ("device", "profile")
RIVALS = ("memtracker", "accelerate", "static")
"""Tools whose answer for a run does not take a run of it: workloads/rivals.py."""
NAMES = {
    "xmem": "xMem",
    "dnnmem": "DNNMem",
    "schedtune": "SchedTune",
    "llmem": "LLMem",
    "memtracker": "MemTracker",
}
FACTORS: Mapping[str, Callable[[Row], str]] = {
    "model": lambda row: row.model,
    "optimizer": lambda row: row.optimizer,
    "batch size": lambda row: (
        f"{row.batch_size // 100}00s" if row.kind == "cnn" else f"{row.batch_size // 10}0s"
    ),
    "zero_grad": lambda row: row.zero_grad_mode.replace("null", "0"),
}
"""What the paper varies. Batches are taken together by hundreds of images and by tens of
sequences."""

ANOVA_BATCHES = {"cnn": range(200, 701, 100), "llm": range(5, 36, 5)}
"""As the published runs have them; Monte Carlo draws any in the same range."""


@dataclass(frozen=True)
class Answers:
    """What was said of each run, by the row's key: both engines' results, and the rivals' bytes."""

    engines: Mapping[str, Mapping[str, Result]]
    rivals: Mapping[str, Mapping[str, float]]

    def judged(self, row: Row) -> dict[str, Judged]:
        """Judge every tool that has an answer for `row`."""
        found = {
            f"{engine} engine": judge(row, self.engines[engine][row.key])
            for engine in ENGINES
            if row.key in self.engines[engine] and self.engines[engine][row.key].reason is None
        }
        said = self.rivals.get(row.key, {})
        found |= {
            name: _of_bytes(row, said[name], said["seconds"]) for name in RIVALS if name in said
        }
        published = {tool: row.judged(tool) for tool in TOOLS}
        return found | {tool: judged for tool, judged in published.items() if judged is not None}


def _of_bytes(row: Row, size: float, seconds: float) -> Judged:
    """Judge a tool that knows no allocator: it foresees an OOM where it expects more than the card
    has.
    """
    return Judged(
        ground_bytes=row.ground_bytes,
        total_bytes=row.total_bytes,
        real_oom=row.real_oom,
        estimated_bytes=size,
        predicted_oom=size > row.total_bytes,
        capped_oom=row.dies_when_capped_at(int(size)),
        seconds=seconds,
    )


def load(folder: Path) -> Answers:
    """Read what is known; a file that is not there has no answers."""
    names = {
        "device": f"published_runs-{RELEASE}.jsonl",
        "profile": f"published_runs-{RELEASE}-profile.jsonl",
    }
    engines = {engine: published_dry_runs.load(folder / name) for engine, name in names.items()}
    path = folder / f"rivals-{RELEASE}.jsonl"
    return Answers(engines, read_lines(path))


def ask_rivals(rows: Sequence[Row], python: str, path: Path) -> None:
    """Append to `path` what the tools on fake tensors say of the rows that it lacks; `python` is
    the job's.
    """
    known = read_lines(path)
    runs = [
        {
            name: getattr(row, name)
            for name in ("key", "model", "optimizer", "batch_size", "zero_grad_mode")
        }
        for row in published_dry_runs.by_cost(rows, known)
        if row.key not in known and not row.fp16
    ]
    if not runs:
        return
    _, gpu = gpus.named(rows[0].gpu, rows[0].total_bytes) or (None, None)
    assert gpu is not None, "the catalogue has the cards of the published runs"
    script = Path(__file__).parent / "workloads" / "rivals.py"
    with tempfile.TemporaryDirectory() as traces, path.open("a", encoding="utf-8") as file:
        subprocess.run(
            [python, str(script)],
            env={**os.environ, **gpu_environment.environment(gpu, 1, Path(traces), None)},
            input="".join(json.dumps(run) + "\n" for run in runs),
            stdout=file,
            text=True,
            check=True,
        )


def selections(rows: Sequence[Row], answers: Answers) -> dict[str, list[Row]]:
    """Return the experiments by name; the profile engine's has only the rows that were run with
    it.
    """
    reached = [row for row in rows if "profile engine" in answers.judged(row)]
    found = {"all runs": list(rows)}
    for name, folder in (("ANOVA", "anova"), ("Monte Carlo", "montecarlo")):
        found[name] = [row for row in rows if row.columns["folder"] == folder]
    return found | {"runs that the profile engine was given": reached}


def table(rows: Sequence[Row], answers: Answers) -> list[list[str]]:
    """Return the paper's table for these runs, a line a tool."""
    by_tool: dict[str, list[Judged]] = {}
    for row in rows:
        for tool, judged in answers.judged(row).items():
            by_tool.setdefault(tool, []).append(judged)
    scored = {tool: score(judged) for tool, judged in by_tool.items()}
    return [
        cells(NAMES.get(tool, tool), scores)
        for tool, scores in scored.items()
        if scores is not None
    ]


def explained(rows: Sequence[Row], answers: Answers) -> list[list[str]]:
    """Return a one-way analysis of variance of each tool's relative error: F and the share
    explained, by factor.

    F = (between / (groups - 1)) / (within / (runs - groups)), of the sums of squares. A tool whose
    error hangs on the model or on the batch is one that cannot see something of it.
    """
    lines = []
    errors: dict[str, list[tuple[Row, float]]] = {}
    for row in rows:
        for tool, judged in ({} if row.real_oom else answers.judged(row)).items():
            errors.setdefault(tool, []).append((row, abs(judged.error)))
    for tool, pairs in errors.items():
        cells_of_tool = [NAMES.get(tool, tool), str(len(pairs))]
        for value_of in FACTORS.values():
            groups: dict[str, list[float]] = {}
            for row, error in pairs:
                groups.setdefault(value_of(row), []).append(error)
            cells_of_tool.append(_variance(list(groups.values())))
        lines.append(cells_of_tool)
    return lines


def _variance(groups: Sequence[Sequence[float]]) -> str:
    values = [value for group in groups for value in group]
    mean = statistics.fmean(values)
    between = sum(len(group) * (statistics.fmean(group) - mean) ** 2 for group in groups)
    total = sum((value - mean) ** 2 for value in values)
    if len(groups) < 2 or len(values) <= len(groups) or total <= between:
        return "-"
    ratio = (between / (len(groups) - 1)) / ((total - between) / (len(values) - len(groups)))
    return f"{ratio:.1f} ({100 * between / total:.0f} %)"


def points(rows: Sequence[Row], answers: Answers) -> list[Point]:
    """Return what the plot shows: each tool on each model; of a PEF that is not settled, the
    worst.
    """
    found = []
    for model in sorted({row.model for row in rows}):
        by_tool: dict[str, list[Judged]] = {}
        for row in rows:
            for tool, judged in answers.judged(row).items() if row.model == model else ():
                by_tool.setdefault(tool, []).append(judged)
        for tool, judged_ones in by_tool.items():
            scores = score(judged_ones)
            if scores is not None:
                found.append(Point(scores.median, scores.pef_worst, NAMES.get(tool, tool), model))
    return found


def side_by_side(rows: Sequence[Row], answers: Answers) -> list[list[str]]:
    """Return both engines on the rows that both were given: error, seconds, host memory."""
    lines = []
    for row in rows:
        both = [answers.engines[engine].get(row.key) for engine in ENGINES]
        if row.real_oom or any(each is None or each.reason is not None for each in both):
            continue
        errors = [f"{100 * judge(row, each).error:+.2f}" for each in both if each is not None]
        seconds = [f"{each.seconds:.0f}" for each in both if each is not None]
        host = [
            f"{each.host_bytes / 1e9:.1f}" if each.host_bytes else ""
            for each in both
            if each is not None
        ]
        lines.append(
            [
                f"{row.model} {row.optimizer} {row.batch_size}",
                row.gpu[-4:],
                *errors,
                *seconds,
                *host,
            ]
        )
    return lines


def design(
    kind: str, count: int, seed: int, rows: Sequence[Row]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield the runs (model, optimizer, batch, zero_grad) of an experiment over the models of
    `rows`.

    ANOVA takes every combination; Monte Carlo draws `count` of them, with any batch between.
    """
    kinds = {row.model: row.kind for row in rows}
    optimizers = {
        model: sorted({row.optimizer for row in rows if row.kind == kinds[model]})
        for model in kinds
    }
    if kind == "anova":
        for model in sorted(kinds):
            places = (optimizers[model], ANOVA_BATCHES[kinds[model]], (0, 1))
            yield from ((model, *each) for each in itertools.product(*places))
        return
    draw = random.Random(seed)
    for _ in range(count):
        model = draw.choice(sorted(kinds))
        batches = ANOVA_BATCHES[kinds[model]]
        batch = draw.randint(batches.start, batches.stop - 1)
        yield model, draw.choice(optimizers[model]), batch, draw.choice((0, 1))


def report(rows: Sequence[Row], answers: Answers, lay_out: Callable[..., list[str]]) -> list[str]:
    """Return every table as lines."""
    lines = []
    for title, chosen in selections(rows, answers).items():
        if found := table(chosen, answers):
            lines += [f"{title}:", "", *lay_out(HEADINGS, found), ""]
    lines += ["How much of the error each factor explains, F (share of the variance):", ""]
    lines += [*lay_out(("tool", "runs", *FACTORS), explained(rows, answers)), ""]
    headings = (
        "run",
        "GPU",
        "device %",
        "profile %",
        "device s",
        "profile s",
        "device GB",
        "profile GB",
    )
    lines += ["Both engines on the same runs, seconds and host memory in GB:", ""]
    return [*lines, *lay_out(headings, side_by_side(rows, answers))]


def own_runs() -> str:
    """Return the same of the runs that were measured for this project, as far as there are any."""
    measured = read_lines(GROUND_TRUTH / "runs.jsonl")
    return ground_truth_compare.report(measured, read_lines(GROUND_TRUTH / "estimates.jsonl"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=DATA, help="where answers are read, and the plot goes"
    )
    parser.add_argument(
        "--python", help="a job's Python: ask the tools on fake tensors for what is missing"
    )
    parser.add_argument("--design", choices=("anova", "monte-carlo"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = published_rows.read(DATA / "published_runs.csv")
    if arguments.design is not None:
        for model, optimizer, batch, mode in design(
            arguments.design, arguments.count, arguments.seed, rows
        ):
            print(
                f"--model {model} --optimizer {optimizer} --batch-size {batch} --zero-grad-mode "
                f"{mode}"
            )
        return 0
    if arguments.python is not None:
        ask_rivals(rows, arguments.python, arguments.out / f"rivals-{RELEASE}.jsonl")
    answers = load(arguments.out)
    print("\n".join(report(rows, answers, markdown_table if arguments.markdown else text_table)))
    print(f"\nRuns measured by ourselves:\n\n{own_runs()}")
    (arguments.out / "paper.svg").write_text(quadrant_plot(points(rows, answers)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
