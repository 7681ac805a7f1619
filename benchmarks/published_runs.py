"""How accurate is the product on real GPU runs that others published, beside the tools that they
compared?

    python -m benchmarks.published_runs --data CSV [--out DIR] [--python JOB_PYTHON] [--jobs 1]

Every row of the CSV (benchmarks/data/README.md) is dry-run as an ordinary job for the GPU that it
ran on, in a Python with the row's torch (2.6.0, torchvision 0.21, transformers 4.51.3 for the
numbers of the paper). Results are appended to DIR as they come; run it again to go on. Then it
prints the tables and writes them, and a plot, beside the results.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import gpus, published_dry_runs, published_rows
from benchmarks.error_plot import Point, error_plot
from benchmarks.published_dry_runs import Result
from benchmarks.published_metrics import Judged, Scores, quantile, score, share
from benchmarks.published_rows import TOOLS, Row
from benchmarks.text_table import text_table
from xmem_slurm.doubts import Doubt
from xmem_slurm.sizing import estimate

DATA = Path(__file__).parent / "data"
OUT = Path("build/published-runs")

OURS = "xmem-slurm"
"""The peak of reserved bytes, beside what the tools say; the margin is judged apart from it."""

GROUPS: Mapping[str, Callable[[Row], str]] = {
    "kind": lambda row: row.kind,
    "model": lambda row: row.model,
    "optimizer": lambda row: row.optimizer,
    "GPU": lambda row: row.gpu,
}

SURE_BATCH = 15
"""In batches of fewer sequences none may reach the 128 tokens that the workload pads to: their
ground is noisy."""

HEADINGS = (
    "tool",
    "n",
    "median",
    "mean",
    "p90",
    "max",
    "signed",
    "under",
    ">5 %",
    "C1",
    "PEF",
    "MCP GB",
    "s",
)


def judge(row: Row, result: Result) -> Judged:
    """Judge the product's peak on the row's GPU; its verdict keeps the margin and the context
    free.
    """
    return Judged(
        ground_bytes=row.ground_bytes,
        total_bytes=row.total_bytes,
        real_oom=row.real_oom,
        estimated_bytes=result.peak_on_gpu_bytes,
        predicted_oom=not result.fits,
        capped_oom=row.dies_when_capped_at(result.peak_on_gpu_bytes),
        seconds=result.seconds,
    )


def by_tool(rows: Sequence[Row], results: Mapping[str, Result]) -> dict[str, list[Judged]]:
    """Judge us and every published tool on the rows that have an estimate of ours."""
    rows = [row for row in rows if row.key in results and results[row.key].reason is None]
    judged = {OURS: [judge(row, results[row.key]) for row in rows]}
    for tool in TOOLS:
        judged[tool] = [each for each in (row.judged(tool) for row in rows) if each is not None]
    return judged


def tables(rows: Sequence[Row], results: Mapping[str, Result]) -> dict[str, dict[str, Scores]]:
    """Return the scores of each tool: "all", then for each value of each of GROUPS, and the sure
    transformers.
    """
    selections = {"all": list(rows)}
    for group, value_of in GROUPS.items():
        for value in sorted({value_of(row) for row in rows}):
            selections[f"{group} {value}"] = [row for row in rows if value_of(row) == value]
        if group == "kind":
            sure = [row for row in rows if row.kind == "llm" and row.batch_size >= SURE_BATCH]
            selections[f"kind llm, batch >= {SURE_BATCH}"] = sure
    found = {}
    for title, selected in selections.items():
        scored = {tool: score(judged) for tool, judged in by_tool(selected, results).items()}
        found[title] = {tool: scores for tool, scores in scored.items() if scores is not None}
    return {title: scores for title, scores in found.items() if scores}


def promise(rows: Sequence[Row], results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    """Say how the promise held, per kind: peak, bound and margin against ground, over the runs
    without OOM.

    The ground holds no CUDA context, so what lies outside the allocator is left out of
    `required_bytes` here. The margin is today's, whatever it was when the results were made.
    """
    found = {}
    for kind in ("all", *sorted({row.kind for row in rows})):
        chosen = [row for row in rows if not row.real_oom and kind in ("all", row.kind)]
        pairs = [
            (row, results[row.key])
            for row in chosen
            if row.key in results and results[row.key].reason is None
        ]
        if not pairs:
            continue
        kept = [r.peak_on_gpu_bytes + r.bound_bytes + _margin_bytes(row, r) for row, r in pairs]
        excess = [size / row.ground_bytes - 1 for size, (row, _) in zip(kept, pairs, strict=True)]
        found[kind] = {
            "runs": len(pairs),
            "below_ground": share([each < 0 for each in excess]),
            "median_excess": quantile(excess, 0.5),
            "p90_excess": quantile(excess, 0.9),
            "least_excess": min(excess),
            "fits_where_it_ran": share([r.fits for _, r in pairs]),
            "fits_without_margin_where_it_ran": share([r.fits_without_margin for _, r in pairs]),
        }
    return found


def _margin_bytes(row: Row, result: Result) -> int:
    # what was a doubt when the result was made may be none today
    known = {each.code for each in Doubt}
    margin = estimate.margin_of(
        map(Doubt.of, known & {*result.doubts}), gpus.capability(row.gpu, row.total_bytes)
    )
    return estimate.margin_bytes(margin, result.peak_reserved_bytes)


def cells(tool: str, scores: Scores) -> list[str]:
    """Return one line of a table: errors in percent, PEF and MCP as one number or as worst to
    best.
    """
    percents = (scores.median, scores.mean, scores.p90, scores.maximum)
    return [
        tool,
        str(scores.runs),
        *(f"{100 * value:.2f}" for value in percents),
        f"{100 * scores.signed_median:+.2f}",
        *(
            f"{100 * value:.0f}"
            for value in (scores.under, scores.under_5_percent, scores.verdicts_right)
        ),
        _between(100 * scores.pef_best, 100 * scores.pef_worst),
        _between(scores.mcp_worst_bytes / 1e9, scores.mcp_best_bytes / 1e9),
        "" if scores.seconds is None else f"{scores.seconds:.1f}",
    ]


def _between(low: float, high: float) -> str:
    return f"{low:.1f}" if round(low, 1) == round(high, 1) else f"{low:.1f}..{high:.1f}"


def largest_errors(
    rows: Sequence[Row], results: Mapping[str, Result], count: int = 10
) -> list[list[str]]:
    """Return the rows on which the peak is furthest off: workload, ground and estimate in MiB,
    error in percent.
    """
    known = [
        row
        for row in rows
        if not row.real_oom and row.key in results and results[row.key].reason is None
    ]
    known.sort(key=lambda row: -abs(judge(row, results[row.key]).error))
    return [
        [
            row.model,
            row.optimizer,
            str(row.batch_size),
            row.gpu.removeprefix("NVIDIA GeForce "),
            f"{row.ground_bytes / 2**20:.0f}",
            f"{results[row.key].peak_on_gpu_bytes / 2**20:.0f}",
            f"{100 * judge(row, results[row.key]).error:+.1f}",
        ]
        for row in known[:count]
    ]


def points(rows: Sequence[Row], results: Mapping[str, Result]) -> list[Point]:
    """Return what the plot shows: every run without OOM, ours and xMem's error over its ground."""
    found = []
    for row in rows:
        xmem, result = row.judged("xmem"), results.get(row.key)
        if row.real_oom or result is None or result.reason is not None:
            continue
        found.append(
            Point(row.ground_bytes, judge(row, result).error, OURS, f"{row.model} {row.batch_size}")
        )
        if xmem is not None:
            found.append(
                Point(row.ground_bytes, xmem.error, "xmem", f"{row.model} {row.batch_size}")
            )
    return found


def report(rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    """Return everything as text."""
    lines = []
    for title, scores in tables(rows, results).items():
        lines += [
            f"\n{title}",
            *text_table(HEADINGS, [cells(tool, each) for tool, each in scores.items()]),
        ]
    lines.append("\npeak and margin against ground, in percent")
    held = promise(rows, results)
    headings = ("kind", *next(iter(held.values()))) if held else ()
    lines += text_table(
        headings,
        [[kind, *(_number(name, v) for name, v in each.items())] for kind, each in held.items()],
    )
    lines.append("\nlargest errors")
    headings = ("model", "optimizer", "batch", "GPU", "ground MiB", "estimate MiB", "error %")
    lines += text_table(headings, largest_errors(rows, results))
    for row in rows:
        result = results.get(row.key)
        if result is not None and result.reason is not None:
            lines.append(
                f"no estimate for {row.model} {row.optimizer} {row.batch_size} on {row.gpu}: "
                f"{result.reason}"
            )
    return "\n".join(lines)


def _number(name: str, value: float) -> str:
    return f"{value:.0f}" if name == "runs" else f"{100 * value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare estimates with published GPU runs")
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA / "published_runs.csv",
        help="a CSV as benchmarks/data has it",
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="where results, scores and the plot go"
    )
    parser.add_argument(
        "--python", default=os.environ.get("XMEM_TEST_PYTHON"), help="the job's Python"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--engine", choices=tuple(published_dry_runs.BUDGETS), default="device")
    arguments = parser.parse_args()
    if arguments.python is None:
        parser.error(
            "--python or XMEM_TEST_PYTHON must name a Python with torch 2.6.0, torchvision and "
            "transformers"
        )
    rows = published_rows.read(arguments.data)
    name = f"published_runs-{published_dry_runs.torch_version(arguments.python)}"
    name += "-profile" if arguments.engine == "profile" else ""
    path = arguments.out / f"{name}.jsonl"
    for row, result in published_dry_runs.run_missing(
        rows, arguments.python, path, arguments.jobs, arguments.engine
    ):
        said = result.reason or f"{result.peak_on_gpu_bytes / row.ground_bytes - 1:+.2%}"
        print(
            f"{row.model} {row.optimizer} {row.batch_size} {row.gpu}: {said} ({result.seconds:.0f} "
            "s)",
            file=sys.stderr,
        )
    results = published_dry_runs.load(path)
    print(report(rows, results))
    scores = {
        title: {tool: asdict(each) for tool, each in of.items()}
        for title, of in tables(rows, results).items()
    }
    written = {"scores": scores, "promise": promise(rows, results)}
    path.with_suffix(".json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(error_plot(points(rows, results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
