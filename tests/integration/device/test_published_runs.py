"""The benchmark of published runs, on two rows of a file that it has never seen."""

import csv
from pathlib import Path

import pytest

from benchmarks import published_dry_runs, published_rows
from benchmarks.published_runs import OURS, by_tool, promise, report

CSV = Path(__file__).parents[3] / "benchmarks" / "data" / "published_runs.csv"

pytestmark = pytest.mark.torch


def rows_like(tmp_path: Path, *changes: dict[str, str]) -> list[published_rows.Row]:
    """Write a CSV of the first row, changed."""
    with CSV.open(newline="", encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        for number, change in enumerate(changes):
            writer.writerow({**first, "path": str(number), **change})
    return published_rows.read(tmp_path / "rows.csv")


def test_rows_are_estimated_once_and_an_unknown_one_says_why(
    tmp_path: Path, job_python: Path
) -> None:
    known = {"model": "MobeNetV3Small", "batch_size": "8", "ground_bytes": str(180 << 20)}
    rows = rows_like(
        tmp_path, known, {"model": "nobody/llm-9b"}, {**known, "gpu": "NVIDIA Riva 128"}
    )
    path = tmp_path / "out" / "results.jsonl"
    ran = [
        result for _, result in published_dry_runs.run_missing(rows, str(job_python), path, jobs=1)
    ]
    estimated, unknown, no_card = ran
    parameters = 1_528_106 * 4  # of mobilenet_v3_small with 10 classes
    assert estimated.reason is None
    assert estimated.gpu == "rtx-3060"
    assert estimated.steps == 3
    assert (
        2 * parameters < estimated.peak_allocated_bytes <= estimated.peak_reserved_bytes < 400 << 20
    )
    assert "cudnn-plan" in estimated.doubts
    assert unknown.reason is not None
    assert "nobody/llm-9b: no model of torchvision and none of" in unknown.reason
    assert no_card.reason == "the GPU catalogue has no NVIDIA Riva 128"
    again = list(published_dry_runs.run_missing(rows, str(job_python), path, jobs=1))
    assert [row.key for row, _ in again] == ["1", "2"]
    results = published_dry_runs.load(path)
    assert len(by_tool(rows, results)[OURS]) == 1
    assert promise(rows, results)["cnn"]["runs"] == 1
    assert "no estimate for nobody/llm-9b" in report(rows, results)
