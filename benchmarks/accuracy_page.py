"""What does docs/accuracy.md say? Everything that was measured, and the margins that follow from
it.

    python -m benchmarks.accuracy_page [--out docs/accuracy.md]

Made from benchmarks/data alone, so it changes only when a benchmark was run again; needs no GPU and
no torch. The plots are copied beside the page: what a site is built of stays in docs.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from benchmarks import (
    cudnn_bounds,
    cudnn_plans,
    ground_truth_compare,
    late_peaks_on_gpu,
    paper,
    published_dry_runs,
    published_rows,
)
from benchmarks.ground_truth import OUT as GROUND_TRUTH
from benchmarks.ground_truth import read_lines
from benchmarks.margins import MOST, RESULTS, Published, evidence, kinds, measured, residuals
from benchmarks.published_metrics import quantile, share
from benchmarks.published_runs import DATA, SURE_BATCH, cells, largest_errors, promise, tables
from benchmarks.text_table import markdown_table
from tests.integration.later_peaks.verdict import EXACT
from xmem_slurm.doubts import Doubt
from xmem_slurm.sizing import conformal
from xmem_slurm.units import GIB

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
TEMPLATE = Path(__file__).with_name("accuracy.md.j2")
PLOTS = (RESULTS.with_suffix(".svg"), DATA / "paper.svg")
"""What the page shows, from `benchmarks.published_runs` and `benchmarks.paper`."""

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.98)
ENVIRONMENT_BYTES = 36 << 20
"""What equal runs differ by between the two environments of the published runs: GPT-Neo, Adam and
AdamW, batch 20."""
CANDIDATES = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.15, 0.20, 0.22)
HEADINGS = (
    "tool",
    "runs",
    "median",
    "mean",
    "p90",
    "max",
    "signed",
    "under",
    "by > 5 %",
    "C1",
    "PEF",
    "MCP GB",
    "s",
)


def classes(found: Sequence[Published]) -> dict[str, list[Published]]:
    """Return the kinds of run that have margins, and that part of the first whose ground is not
    noisy.
    """
    sorts = kinds(found)
    nothing = next(iter(sorts.values()))
    sure = [each for each in nothing if each.row.batch_size >= SURE_BATCH]
    return {**sorts, f"nothing was unseen, ground not noisy (batch >= {SURE_BATCH})": sure}


def margin_table(found: Sequence[Published]) -> list[str]:
    """Return the conformal margins of each class, in percent of the peak, and how they do on models
    left out.
    """
    lines = []
    for name, members in classes(found).items():
        shortfalls = [each.shortfall for each in members]
        margins = [conformal.margin(shortfalls, coverage) for coverage in COVERAGES]
        left_out = conformal.left_out_coverage(
            [(each.row.model, each.shortfall) for each in members], 0.9
        )
        lines.append([name, str(len(members)), *map(_percent, margins), _percent(left_out)])
    headings = [
        "what the dry run could not see",
        "runs",
        *(f"{100 * coverage:.0f} %" for coverage in COVERAGES),
    ]
    return markdown_table([*headings, "models left out, at 90 %"], lines)


def trade_table(found: Sequence[Published]) -> list[str]:
    """Return what each candidate margin would have cost and saved, for each kind of run."""
    lines = []
    for candidate in CANDIDATES:
        figures = [candidate]
        for members in kinds(found).values():
            excess = [(1 + candidate) / (1 + each.shortfall) - 1 for each in members]
            figures += [
                share([value < 0 for value in excess]),
                quantile(excess, 0.5),
                quantile(excess, 0.9),
            ]
        lines.append([f"{100 * value:.1f}" for value in figures])
    columns = ("below ground %", "median excess %", "p90 excess %")
    return markdown_table(
        ("margin %", *(f"{column}, {kind}" for kind in ("A", "B") for column in columns)), lines
    )


def offset(found: Sequence[Published]) -> str:
    """Say what the error of the transformers would be without the second environment's memory."""
    known = [each for each in found if each.row.kind == "llm"]
    sure = [each for each in known if each.row.batch_size >= SURE_BATCH]
    medians = [
        quantile([abs(_without_environment(each)) for each in members], 0.5)
        for members in (known, sure)
    ]
    return (
        f"With these {ENVIRONMENT_BYTES >> 20} MiB added to the estimates of that environment, the "
        "median error of all"
        f" transformers is {100 * medians[0]:.2f} %, in batches of 15 and more "
        f"{100 * medians[1]:.2f} %."
    )


def agreement(answers: paper.Answers) -> str:
    """Say how far apart the engines' peaks are on the runs that both were given."""
    device, profile = (answers.engines[engine] for engine in paper.ENGINES)
    both = [(device[key], result) for key, result in profile.items() if key in device]
    apart = [
        abs(b.peak_reserved_bytes / a.peak_reserved_bytes - 1)
        for a, b in both
        if not (a.reason or b.reason)
    ]
    equal = sum(each == 0 for each in apart)
    return (
        f"Of the {len(apart)} runs that both engines were given, {equal} have the same peak to the "
        "byte; the others"
        f" differ by at most {100 * max(apart):.2f} %."
    )


def plans_beyond(measured_share: float) -> dict[str, int]:
    """Count the contiguous networks to which cuDNN's plans add more than margins would where it
    cannot be asked.
    """
    changes = [share for run, share in cudnn_plans.changes("2.11.0") if "channels_last" not in run]
    limits = {"measured": measured_share, "prior": Doubt.CUDNN_PLAN.price}
    return {
        "runs": len(changes),
        **{name: sum(each > limit for each in changes) for name, limit in limits.items()},
    }


def _without_environment(each: Published) -> float:
    added = 0 if each.row.zero_grad_mode == "null" else ENVIRONMENT_BYTES
    return (each.result.peak_on_gpu_bytes + added) / each.row.ground_bytes - 1


def _percent(value: float | None) -> str:
    return "too few" if value is None else f"{100 * value:.1f}"


def own() -> dict[str, Any]:
    """Return what was measured on a GPU of our own, and what dry runs say of it."""
    runs, estimates = (read_lines(GROUND_TRUTH / f"{name}.jsonl") for name in ("runs", "estimates"))
    both = ground_truth_compare.pairs(runs, estimates)
    capped = [each["survived"] for each in read_lines(GROUND_TRUTH / "capped.jsonl").values()]
    lived = {
        name: each["survived"]
        for name, each in read_lines(GROUND_TRUTH / "scripts_capped.jsonl").items()
    }
    rows, verdicts = late_peaks_on_gpu.table(GROUND_TRUTH)
    gpu, versions = both[0][1]["gpu"]["name"], both[0][1]["versions"]
    usual = "resnet50_64x224_fp32_AdamW"
    allocated = [
        f"{runs[key]['peak_allocated_bytes'] / GIB:.1f}" for key in (f"{usual}_benchmark", usual)
    ]
    names = ("torch", "cudnn", "torchvision", "transformers", "triton", "driver")
    return {
        "gpu": gpu.removeprefix("NVIDIA "),
        "runs": len(both),
        "versions": ", ".join(f"{name} {versions[name]}" for name in names),
        "summary": markdown_table(ground_truth_compare.SUMMARY, ground_truth_compare.summary(both)),
        "replayed": sum(
            each["replayed_history_bytes"] == run["peak_reserved_bytes"] for _, run, each in both
        ),
        "capped": len(capped),
        "survived": sum(capped),
        "scripts_capped": len(lived),
        "scripts_survived": sum(lived.values()),
        "scripts_dead": sorted(name for name, survived in lived.items() if not survived),
        "trial": allocated[0],
        "without_trial": allocated[1],
        "scripts": len(rows),
        "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()),
        "not_exact": markdown_table(
            late_peaks_on_gpu.HEADINGS, [row for row in rows if row[1] != EXACT]
        ),
    }


def page() -> str:
    """Return the page.

    Raises:
        FileNotFoundError: benchmarks/data lacks a file.
    """
    rows = published_rows.read(DATA / "published_runs.csv")
    results = published_dry_runs.load(RESULTS)
    with_plans = published_dry_runs.load(cudnn_bounds.PLANS)
    scores = tables(rows, results)
    found = residuals(rows, results)
    held = promise(rows, results)
    promised = {name: measured(members) for name, members in kinds(evidence()).items()}
    answers = paper.load(DATA)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        dates=sorted({result.date for result in results.values()}),
        results=list(results.values()),
        plots=[copy_of(plot).name for plot in PLOTS],
        tables={
            title: markdown_table(HEADINGS, [cells(tool, each) for tool, each in of.items()])
            for title, of in scores.items()
        },
        paper=paper.report(rows, answers, markdown_table),
        agreement=agreement(answers),
        promise=markdown_table(
            ("kind", "runs", "below ground %", "median excess %", "p90 excess %", "least excess %"),
            [
                [kind, f"{of['runs']:.0f}"]
                + [
                    f"{100 * of[name]:.1f}"
                    for name in ("below_ground", "median_excess", "p90_excess", "least_excess")
                ]
                for kind, of in held.items()
            ],
        ),
        errors=markdown_table(
            ("model", "optimizer", "batch", "GPU", "ground MiB", "estimate MiB", "error %"),
            largest_errors(rows, results),
        ),
        offset=offset(found),
        margins=margin_table(found),
        trades=trade_table(found),
        kinds=promised,
        most=f"{100 * MOST:.0f}",
        capabilities=" and ".join(sorted({each.capability for each in found})),
        plans_beyond=plans_beyond(max(kind.margin.share for kind in promised.values() if kind)),
        own=own(),
        plans=cudnn_plans.tables(),
        bounds=cudnn_bounds.table(rows, with_plans),
        beyond=cudnn_bounds.beyond(rows, with_plans),
    )


def copy_of(plot: Path, page: Path = PAGE) -> Path:
    """Return where the page has its copy of a plot: `accuracy-paper.svg` beside it."""
    return page.with_name(f"{page.stem}-{plot.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/accuracy.md from the benchmarks' data")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    arguments.out.write_text(page(), encoding="utf-8")
    for plot in PLOTS:
        shutil.copyfile(plot, copy_of(plot, arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
