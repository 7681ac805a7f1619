"""The benchmark of cuDNN's plans: what it estimates twice, and what its tables say."""

import json
from pathlib import Path

from benchmarks import cudnn_bounds, cudnn_plans, published_rows
from benchmarks.published_dry_runs import Result
from benchmarks.published_rows import Row

MIB = 1 << 20


def line(name: str, without: int, given: int, library: str = "9.19.0") -> dict[str, object]:
    sides = [
        {
            "reserved_bytes": peak * MIB,
            "allocated_bytes": peak * MIB,
            "host_bytes": host * MIB,
            "doubts": [],
        }
        for peak, host in ((without, 400), (given, 480))
    ]
    of = {"key": name, "run": name, "gpu": "h200", "torch": "2.11.0", "cudnn": library}
    return {**of, "without": sides[0], "with": sides[1]}


def test_every_network_of_the_campaign_that_needs_no_compiler() -> None:
    chosen = cudnn_plans.image_configs()
    assert len({each.model for each in chosen}) == 15
    assert len(chosen) >= 30
    assert not any(each.compiled for each in chosen)


def test_each_library_has_a_table_and_failures_have_none(tmp_path: Path) -> None:
    lines = [line("a", 1000, 1100), line("b", 1000, 990), line("c", 500, 500, "9.10.2")]
    lines.append({**line("d", 1, 1), "with": {"reason": "no estimate"}})
    data = tmp_path / "plans.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in lines))
    tables = cudnn_plans.tables(data)
    assert list(tables) == ["h200, torch 2.11.0, cuDNN 9.19.0", "h200, torch 2.11.0, cuDNN 9.10.2"]
    first = tables["h200, torch 2.11.0, cuDNN 9.19.0"]
    assert first[2:4] == ["| a | 1000 | 1100 | +10.0 | +10.0 |", "| b | 1000 | 990 | -1.0 | -1.0 |"]
    assert first[-1].startswith(
        "2 runs: the peak changes by 5.5 % in the median, by -1.0 to +10.0 % at the ends"
    )
    assert "+80 MiB" in first[-1]


ROWS = published_rows.read(cudnn_bounds.DATA / "published_runs.csv")


def result(row: Row, first: float, largest: float, need: float) -> Result:
    """Return an estimate of a row, its sizes as shares of what was measured."""
    sizes = {"peak_on_gpu_bytes": first, "at_most_on_gpu_bytes": largest, "fits_in_bytes": need}
    shares = {name: int(share * row.ground_bytes) for name, share in sizes.items()}
    return Result(row.key, "", "", "", None, 0.0, **shares)  # type: ignore[arg-type]


def test_a_run_is_bounded_by_the_largest_plans_and_judged_by_what_it_was_capped_at() -> None:
    rows = [
        row for row in ROWS if row.kind == "cnn" and not row.real_oom and row.dies_when_capped_at(0)
    ]
    held, above = rows[:2]
    plans = {held.key: result(held, 0.9, 1.1, 1.0), above.key: result(above, 0.8, 0.9, 0.0)}
    last = cudnn_bounds.table(rows, plans)[-1]
    assert last == "| all | 2 | -20.0 .. -10.0 | 1 of 2 | -50.0 | 1 | 0 | 1 |"
    (line,) = cudnn_bounds.beyond(rows, plans)[2:]
    assert line.startswith(f"| {above.model} {above.optimizer} {above.batch_size} |")


def test_a_larger_plan_may_find_a_better_place() -> None:
    assert cudnn_bounds.at_most(result(ROWS[0], 1.1, 1.0, 1.0)) == int(1.1 * ROWS[0].ground_bytes)
