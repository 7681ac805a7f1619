"""The tables of `ground_truth --compare`, of synthetic measurements: figures made up here, measured nowhere."""

from typing import Any

from benchmarks.ground_truth_compare import report
from xmem_slurm.units import MIB


def synthetic_run(reserved: int, size: int) -> dict[str, Any]:
    return {
        "config": {"size": size},
        "gpu": {"name": "a synthetic GPU", "total_bytes": 80_000 * MIB},
        "peak_reserved_bytes": reserved * MIB,
        "outside_after_bytes": 500 * MIB,
    }


def synthetic_estimate(reserved: int, margin: int, parting: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "peak_reserved_bytes": reserved * MIB,
        "fits_in_bytes": reserved * MIB,
        "margin_bytes": margin * MIB,
        "outside_allocator_bytes": 550 * MIB,
        "replayed_history_bytes": 1000 * MIB,
        "parting": parting,
        "seconds": 9.0,
    }


PARTING = {"allocation": 7, "measured": "512 with 0 live", "dry": "1024 with 0 live", "operator": "train.py:3 step"}
RUNS = {
    "exact_224": synthetic_run(1000, 224),
    "low_224": synthetic_run(1000, 224),
    "high_512": synthetic_run(1000, 512),
    "died": {"config": {"size": 224}, "error": "OutOfMemoryError: synthetic"},
    "refused": synthetic_run(1000, 224),
}
ESTIMATES = {
    "exact_224": synthetic_estimate(1000, 10),
    "low_224": synthetic_estimate(900, 50, PARTING),
    "high_512": synthetic_estimate(1020, 10),
    "refused": {"reason": "a synthetic refusal"},
}


def cells(line: str) -> list[str]:
    return line.split()


def test_scores_by_kind_and_the_context() -> None:
    kinds = {words[0]: words for words in map(cells, report(RUNS, ESTIMATES).splitlines()[:4])}
    # median, mean, p90 and maximum of |error|, signed median, under, under by more than 5 %, below promise, context
    assert kinds["all"] == ["all", "3", "2.00", "4.00", "8.40", "10.00", "+0.00", "33", "33", "33", "+10"]
    assert kinds["images"] == ["images", "2", "5.00", "5.00", "9.00", "10.00", "-5.00", "50", "50", "50", "+10"]
    assert kinds["language"][:3] == ["language", "1", "2.00"]


def test_each_run_has_its_line_with_the_first_parting_and_each_failure_its_reason() -> None:
    lines = report(RUNS, ESTIMATES).splitlines()
    (low,) = (line for line in lines if line.startswith("low_224"))
    assert cells(low)[1:7] == ["1000", "-10.00", "+0.00", "500", "550", "7"]
    assert low.endswith("train.py:3 step: 512 with 0 live, dry 1024 with 0 live")
    (exact,) = (line for line in lines if line.startswith("exact_224"))
    assert cells(exact)[-1] == "never"
    assert "no measurement of died: OutOfMemoryError: synthetic" in lines
    assert "no estimate for refused: a synthetic refusal" in lines


def test_nothing_to_compare() -> None:
    assert report({}, {}) == "nothing measured, or nothing estimated"
