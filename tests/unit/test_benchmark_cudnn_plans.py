"""The benchmark of cuDNN's plans: what it estimates twice, and what its tables say."""

import json
from pathlib import Path

from benchmarks import cudnn_bounds, cudnn_plans

MIB = 1 << 20


def line(name: str, without: int, given: int, library: str = "cuDNN 9.19.0") -> dict[str, object]:
    sides = [
        {"reserved_bytes": peak * MIB, "allocated_bytes": peak * MIB, "host_bytes": host * MIB, "doubts": doubts}
        for peak, host, doubts in ((without, 400, []), (given, 480, [f"cudnn-described: {library}"]))
    ]
    return {"key": name, "run": name, "gpu": "h200", "torch": "2.11.0", "without": sides[0], "with": sides[1]}


def test_every_network_of_the_campaign_that_needs_no_compiler() -> None:
    chosen = cudnn_plans.image_configs()
    assert len({each.model for each in chosen}) == 15
    assert len(chosen) >= 30
    assert not any(each.compiled for each in chosen)


def test_each_library_has_a_table_and_failures_have_none(tmp_path: Path) -> None:
    lines = [line("a", 1000, 1100), line("b", 1000, 990), line("c", 500, 500, "cuDNN 9.10.2")]
    lines.append({**line("d", 1, 1), "with": {"reason": "no estimate"}})
    data = tmp_path / "plans.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in lines))
    tables = cudnn_plans.tables(data)
    assert list(tables) == ["h200, torch 2.11.0, cuDNN 9.19.0", "h200, torch 2.11.0, cuDNN 9.10.2"]
    first = tables["h200, torch 2.11.0, cuDNN 9.19.0"]
    assert first[2:4] == ["| a | 1000 | 1100 | +10.0 | +10.0 |", "| b | 1000 | 990 | -1.0 | -1.0 |"]
    assert first[-1].startswith("2 runs: the peak changes by 5.5 % in the median, by -1.0 to +10.0 % at the ends")
    assert "+80 MiB" in first[-1]


def test_a_ground_between_two_estimates_is_told_from_one_outside() -> None:
    assert [cudnn_bounds.place(ground, (110, 100)) for ground in (100, 105, 90, 121)] == [
        "between",
        "between",
        "10.0 % below",
        "10.0 % above",
    ]
