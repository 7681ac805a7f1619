"""The margin: like the runs that were measured, or a prior; and the file is the one that the data
give."""

import pytest

from benchmarks import margins as benchmark
from xmem_slurm.doubts import Doubt
from xmem_slurm.sizing.margins import Margin, MeasuredMargin, margin, measured

HERE, ELSEWHERE = "8.6", "9.0"
NOTHING = MeasuredMargin(frozenset(), frozenset({HERE}), Margin(0.04, 0.9, 40, 4, 0.91))
PLANS = MeasuredMargin(
    frozenset({"plan", "norm"}), frozenset({HERE}), Margin(0.08, 0.9, 60, 6, 0.92)
)
PRIORS = {"plan": 0.1, "norm": 0.1, "rnn": 0.12, "small": 0.02}


@pytest.mark.parametrize(
    ("unseen", "expected"),
    [
        (set(), NOTHING.margin),
        ({"plan"}, PLANS.margin),
        ({"plan", "norm"}, PLANS.margin),
        ({"rnn"}, Margin(0.12)),
        ({"plan", "rnn"}, Margin(0.12)),
        ({"small"}, Margin(0.04)),  # a doubt makes no margin narrower than none
        ({"plan", "small"}, Margin(0.1)),
    ],
)
def test_a_margin_promises_something_only_for_runs_like_those_measured(
    unseen: set[str], expected: Margin
) -> None:
    assert margin(unseen, HERE, PRIORS, [NOTHING, PLANS]) == expected


def test_what_libraries_choose_on_another_kind_of_gpu_was_not_measured() -> None:
    assert margin({"plan"}, ELSEWHERE, PRIORS, [NOTHING, PLANS]) == Margin(0.1)
    assert margin(set(), ELSEWHERE, PRIORS, [NOTHING, PLANS]) == NOTHING.margin


def test_without_measurements_the_prior_is_all() -> None:
    assert margin({"rnn", "plan"}, HERE, PRIORS, []) == Margin(0.12)


def test_what_ships_is_what_the_data_give() -> None:
    found = benchmark.evidence()
    assert benchmark.FILE.read_text(encoding="utf-8") == benchmark.text(found), (
        "run `python -m benchmarks.margins`"
    )
    for kind in measured():
        assert kind.unseen <= {doubt.code for doubt in Doubt if doubt.price is not None}
        promise = kind.margin.probability
        assert promise is not None
        assert promise >= benchmark.COVERAGE
        assert kind.margin.share <= benchmark.MOST
        alike = [each for each in found if each.unseen == kind.unseen]
        assert len(alike) == kind.margin.runs
        assert sum(each.shortfall <= kind.margin.share for each in alike) >= promise * len(alike)
        assert kind.margin.held_out is not None
        assert kind.margin.held_out >= benchmark.COVERAGE
