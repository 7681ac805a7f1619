"""How wide must margins be? From measured runs to site-config/margins.toml, which the product
reads.

    python -m benchmarks.margins [--out site-config/margins.toml]

Made from benchmarks/data alone, so it changes only when a benchmark was run again; needs no GPU and
no torch.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gpus, published_dry_runs, published_rows
from benchmarks.ground_truth import read_lines
from benchmarks.ground_truth_compare import pairs
from benchmarks.published_dry_runs import Result
from benchmarks.published_rows import Row
from benchmarks.published_runs import DATA
from benchmarks.real_runs import page
from benchmarks.real_runs.sources import peft
from xmem_slurm.doubts import Doubt
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing import conformal, margins

COVERAGE = 0.9
"""The least that a margin promises..."""
MOST = 0.06
"""...and the most that a promise may cost: as much is promised, in whole percent, as can be had for
this share of the peak. Beyond it margins of the published runs double for a few percent more:
docs/accuracy.md has the curve."""

RESULTS = DATA / "published_runs-2.6.0.jsonl"
MEASURED = DATA / "ground-truth"
FILE = Path(__file__).parents[1] / "site-config" / margins.FILE

HEAD = """\
# Margins from measured runs: what to add to the peak of an estimate, as a share of it. Written by
# `python -m benchmarks.margins` from benchmarks/data; do not edit. xmem_slurm/sizing/margins.py says what the rule is.
schema_version = 1
"""


@dataclass(frozen=True)
class Residual:
    """One run on a real GPU without OOM: the least margin, as a share of the peak, that would have
    done.

    `unseen` is what the dry run could not see, of that which can change a size (`Doubt.code`);
    `capability` the compute capability of the GPU; `torch` and `date` are those of the estimate.
    Runs of one `model` err alike.
    """

    shortfall: float
    unseen: frozenset[str]
    capability: str
    source: str
    model: str
    torch: str
    date: str


@dataclass(frozen=True)
class Published(Residual):
    """One that the authors of xMem published."""

    row: Row
    result: Result


def residuals(rows: Sequence[Row], results: Mapping[str, Result]) -> list[Published]:
    """Return the residual of every published row that has one."""
    return [
        Published(
            conformal.shortfall(row.ground_bytes, result.peak_on_gpu_bytes),
            _sizes(result.doubts),
            gpus.capability(row.gpu, row.total_bytes),
            "published runs of xMem, RTX 3060 and 4060",
            row.model,
            result.torch,
            result.date,
            row,
            result,
        )
        for row, result in ((row, results.get(row.key)) for row in rows)
        if result is not None and result.reason is None and not row.real_oom
    ]


def of_real_runs() -> list[Residual]:
    """Return the residual of every peak of reserved bytes that others published of public code
    (`real_runs`).

    PEFT's are no evidence: its data are made so that what a dry run may not reach, the longest
    batch, comes first.
    """
    return [
        Residual(
            conformal.shortfall(result.ground_bytes, result.estimated_bytes),
            _sizes(result.doubts),
            load_catalogue()[result.gpu].capability,
            result.source,
            result.source,
            result.torch,
            result.date,
        )
        for result in page.results(page.DATA)
        if result.reason is None
        and re.match(r"(peak|max) reserved", result.metric)
        and result.source != peft.SOURCE
    ]


def of_our_runs(folder: Path = MEASURED) -> list[Residual]:
    """Return the residual of every run that we measured: of what its history needs, not of what its
    cache held.
    """
    measured, estimates = (read_lines(folder / name) for name in ("runs.jsonl", "estimates.jsonl"))
    return [
        Residual(
            conformal.shortfall(found["needed_by_history_bytes"], found["fits_in_bytes"]),
            _sizes(found["doubts"]),
            run["gpu"]["capability"],
            f"our own runs on {run['gpu']['name']}",
            run["config"]["model"],
            found["torch"].partition("+")[0],
            found["date"],
        )
        for _, run, found in pairs(measured, estimates)
    ]


def evidence() -> list[Residual]:
    """Return the residuals of all runs that the margins are made of."""
    rows = published_rows.read(DATA / "published_runs.csv")
    return [*residuals(rows, published_dry_runs.load(RESULTS)), *of_real_runs(), *of_our_runs()]


def _sizes(doubts: Iterable[str]) -> frozenset[str]:
    return frozenset(code for code in doubts if Doubt.of(code).price is not None)


def kinds(found: Sequence[Residual]) -> dict[str, list[Residual]]:
    """Sort residuals by what the dry run could not see: margins are kept by that, never by
    model.
    """
    sorts: dict[str, list[Residual]] = {"nothing was unseen": [], "cuDNN's plans were unseen": []}
    for each in found:
        name = (
            "cuDNN's plans were unseen"
            if each.unseen == {Doubt.CUDNN_PLAN.code}
            else ", ".join(sorted(each.unseen))
        )
        sorts.setdefault(name or "nothing was unseen", []).append(each)
    return sorts


def measured(members: Sequence[Residual]) -> margins.MeasuredMargin | None:
    """Return the margin of a kind of run; None where too few were measured."""
    shortfalls = [each.shortfall for each in members]
    shares = {
        percent / 100: conformal.margin(shortfalls, percent / 100)
        for percent in range(int(100 * COVERAGE), 100)
    }
    worth_it = {
        promise: share for promise, share in shares.items() if share is not None and share <= MOST
    }
    if not worth_it:
        return None
    promise, share = max(worth_it.items())
    by_model = [(each.model, each.shortfall) for each in members]
    found = margins.Margin(
        share=math.ceil(share * 1e4) / 1e4,
        probability=promise,
        runs=len(members),
        models=len({name for name, _ in by_model}),
        held_out=conformal.left_out_coverage(by_model, promise),
    )
    unseen = frozenset().union(*(each.unseen for each in members))
    return margins.MeasuredMargin(unseen, frozenset(each.capability for each in members), found)


def text(found: Sequence[Residual]) -> str:
    """Return the file's text."""
    lines = [HEAD]
    for name, members in kinds(found).items():
        kind = measured(members)
        if kind is None:
            continue
        unseen, capabilities = map(_strings, (kind.unseen, kind.capabilities))
        sources = sorted({each.source for each in members})
        dates = sorted({each.date for each in members})
        versions = " and ".join(sorted({each.torch for each in members}))
        lines += [f"# Runs in which {name}.", "[[measured]]", f"unseen = {unseen}"]
        lines += [f"capabilities = {capabilities}"]
        lines += [f"share = {kind.margin.share:.4f}", f"probability = {kind.margin.probability}"]
        lines += [f"runs = {kind.margin.runs}", f"models = {kind.margin.models}"]
        lines += (
            [f"held_out = {kind.margin.held_out:.3f}"] if kind.margin.held_out is not None else []
        )
        lines += [
            f'source = "{", ".join(sources)}; torch {versions}, estimated {" to ".join(dates)}"',
            "",
        ]
    return "\n".join(lines)


def _strings(values: Iterable[str]) -> str:
    return json.dumps(sorted(values))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write site-config/margins.toml from the benchmarks' data"
    )
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    arguments.out.write_text(text(evidence()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
