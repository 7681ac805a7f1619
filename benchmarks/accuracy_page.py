"""What does docs/accuracy.md say? Everything that was measured, and the margins that follow from it.

    python -m benchmarks.accuracy_page [--out docs/accuracy.md]

Made from benchmarks/data alone, so it changes only when a benchmark was run again; needs no GPU and no torch.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from benchmarks import conformal, published_dry_runs, published_rows
from benchmarks.campaign import configs
from benchmarks.ground_truth import OUT as GROUND_TRUTH
from benchmarks.ground_truth import read_lines
from benchmarks.published_dry_runs import Result
from benchmarks.published_metrics import quantile, share
from benchmarks.published_rows import Row
from benchmarks.published_runs import DATA, SURE_BATCH, cells, largest_errors, promise, tables
from benchmarks.text_table import markdown_table

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
TEMPLATE = Path(__file__).with_name("accuracy.md.j2")
RESULTS = DATA / "published_runs-2.6.0.jsonl"

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.98)
CANDIDATES = (0.02, 0.05, 0.08, 0.10, 0.15, 0.21)
HEADINGS = ("tool", "runs", "median", "mean", "p90", "max", "signed", "under", "by > 5 %", "C1", "PEF", "MCP GB", "s")


@dataclass(frozen=True)
class Residual:
    """One run without OOM: its row, our result, and the least margin, as a share of the peak, that would have done."""

    row: Row
    result: Result
    shortfall: float


def residuals(rows: Sequence[Row], results: Mapping[str, Result]) -> list[Residual]:
    """Return the residual of every row that has one."""
    return [
        Residual(row, result, conformal.shortfall(row.ground_bytes, result.peak_on_gpu_bytes))
        for row, result in ((row, results.get(row.key)) for row in rows)
        if result is not None and result.reason is None and not row.real_oom
    ]


def classes(found: Sequence[Residual]) -> dict[str, list[Residual]]:
    """Sort residuals by what the dry run could not see: margins are kept by that, never by model."""
    plans = [each for each in found if "cudnn-plan" in each.result.doubts]
    rest = [each for each in found if "cudnn-plan" not in each.result.doubts]
    sure = [each for each in rest if each.row.batch_size >= SURE_BATCH]
    return {
        "cuDNN's plans are not known": plans,
        "nothing of that kind": rest,
        f"nothing of that kind, ground not noisy (batch >= {SURE_BATCH})": sure,
    }


def margin_table(found: Sequence[Residual]) -> list[str]:
    """Return the conformal margins of each class, in percent of the peak, and how they do on models left out."""
    lines = []
    for name, members in classes(found).items():
        shortfalls = [each.shortfall for each in members]
        margins = [conformal.margin(shortfalls, coverage) for coverage in COVERAGES]
        left_out = conformal.left_out_coverage([(each.row.model, each.shortfall) for each in members], 0.9)
        lines.append([name, str(len(members)), *map(_percent, margins), _percent(left_out)])
    headings = ["what the dry run could not see", "runs", *(f"{100 * coverage:.0f} %" for coverage in COVERAGES)]
    return markdown_table([*headings, "models left out, at 90 %"], lines)


def trade_table(found: Sequence[Residual]) -> list[str]:
    """Return what each candidate margin for unknown plans would have cost and saved, over the runs that it concerns."""
    plans = classes(found)["cuDNN's plans are not known"]
    lines = []
    for candidate in CANDIDATES:
        excess = [each.result.peak_on_gpu_bytes * (1 + candidate) / each.row.ground_bytes - 1 for each in plans]
        broken = share([value < 0 for value in excess])
        figures = (candidate, broken, quantile(excess, 0.5), quantile(excess, 0.9))
        lines.append([f"{100 * value:.1f}" for value in figures])
    return markdown_table(("margin %", "below ground %", "median excess %", "p90 excess %"), lines)


def kept(found: Sequence[Residual]) -> tuple[float, float]:
    """Return the margins, as shares of the peak, that the estimates had: the least, and that for unknown plans."""
    plans, rest, _ = classes(found).values()
    return _kept(rest), _kept(plans)


def _kept(members: Sequence[Residual]) -> float:
    return quantile([each.result.margin_bytes / each.result.peak_reserved_bytes for each in members], 0.5)


def _percent(value: float | None) -> str:
    return "too few" if value is None else f"{100 * value:.1f}"


def page() -> str:
    """Return the page.

    Raises:
        FileNotFoundError: benchmarks/data lacks a file.
    """
    rows = published_rows.read(DATA / "published_runs.csv")
    results = published_dry_runs.load(RESULTS)
    scores = tables(rows, results)
    found = residuals(rows, results)
    held = promise(rows, results)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        dates=sorted({result.date for result in results.values()}),
        results=list(results.values()),
        plot=f"../benchmarks/data/{RESULTS.with_suffix('.svg').name}",
        tables={
            title: markdown_table(HEADINGS, [cells(tool, each) for tool, each in of.items()])
            for title, of in scores.items()
        },
        promise=markdown_table(
            ("kind", "runs", "below ground %", "median excess %", "p90 excess %", "least excess %"),
            [
                [kind, f"{of['runs']:.0f}"]
                + [f"{100 * of[name]:.1f}" for name in ("below_ground", "median_excess", "p90_excess", "least_excess")]
                for kind, of in held.items()
            ],
        ),
        errors=markdown_table(
            ("model", "optimizer", "batch", "GPU", "ground MiB", "estimate MiB", "error %"),
            largest_errors(rows, results),
        ),
        margins=margin_table(found),
        trades=trade_table(found),
        kept=kept(found),
        campaign=len(list(configs())),
        measured=len(read_lines(GROUND_TRUTH / "runs.jsonl")),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/accuracy.md from the benchmarks' data")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    arguments.out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
