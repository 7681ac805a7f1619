"""The tables of `ground_truth --compare`, of synthetic measurements: figures made up here, measured
nowhere."""

import re
from typing import Any

from benchmarks.ground_truth_compare import report
from xmem_slurm.units import MIB


def synthetic_run(reserved: int, size: int) -> dict[str, Any]:
    return {
        "config": {
            "model": "resnet50" if size == 224 else "gpt2",
            "benchmark": False,
            "channels_last": False,
        },
        "gpu": {"name": "a synthetic GPU", "total_bytes": 80_000 * MIB},
        "peak_reserved_bytes": reserved * MIB,
        "outside_after_bytes": 500 * MIB,
    }


def synthetic_estimate(
    reserved: int, margin: int, parting: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "peak_reserved_bytes": reserved * MIB,
        "fits_in_bytes": reserved * MIB,
        "margin_bytes": margin * MIB,
        "outside_allocator_bytes": 550 * MIB,
        "replayed_history_bytes": 1000 * MIB,
        "needed_by_history_bytes": 1000 * MIB,
        "parting": parting,
        "seconds": 9.0,
    }


PARTING = {
    "allocation": 7,
    "measured": "512 with 0 live",
    "dry": "1024 with 0 live",
    "operator": "train.py:3 step",
}
RUNS = {
    "exact_224": synthetic_run(1000, 224),
    "low_224": synthetic_run(1000, 224),
    "high_512": synthetic_run(1000, 512),
    "died": {"config": {}, "error": "OutOfMemoryError: synthetic"},
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
    all_runs, images, transformers = (
        re.split(" {2,}", line) for line in report(RUNS, ESTIMATES).splitlines()[1:4]
    )
    # runs, same allocations, exact; median, lowest and highest error; promise enough; its excess;
    # outside, catalogue
    assert all_runs[:7] == ["all", "3", "2", "1", "+2.00", "-10.00", "+2.00"]
    assert all_runs[7:] == ["2", "-5.0", "+1.0", "+3.0", "500-500", "550"]
    assert images[:7] == ["images, contiguous", "2", "1", "1", "+5.00", "-10.00", "+0.00"]
    assert transformers[:3] == ["transformers", "1", "1"]


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
