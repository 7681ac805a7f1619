"""Metrics by turns: each is a record in its direction, all stay within bounds, and what is counted has their share."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest

import xmem_slurm


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return those of a process, by the probe's module, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return importlib.import_module("_xmem.values.metrics").Metrics()


def test_by_turns_they_are_lower_and_higher_than_ever_before(metrics: Any) -> None:
    lows, highs = [], []
    first = metrics.number
    for steps in range(1, 400):
        metrics.measured(steps)
        (lows if metrics.truth else highs).append(metrics.number)
    assert all(later < before for before, later in itertools.pairwise([first, *lows]))
    assert all(later > before for before, later in itertools.pairwise([first, *highs]))


def test_after_any_number_of_turns_they_can_be_a_share(metrics: Any) -> None:
    for turn in (10**3, 10**6, 10**9):
        for steps in (turn, turn + 1):
            metrics._turn = steps
            assert 0.5 < metrics.number < 1


def test_a_turn_lasts_until_there_was_a_step(metrics: Any) -> None:
    metrics.measured(1)
    turn = metrics.number
    metrics.measured(1)
    assert metrics.number == turn
    metrics.measured(2)
    assert metrics.number != turn


def test_calls_without_gradients_begin_a_turn_only_where_nothing_else_does(metrics: Any) -> None:
    first = metrics.number
    metrics.measured(1, shown=False)
    assert metrics.number != first
    metrics.measured(2)
    second = metrics.number
    metrics.measured(3, shown=False)
    assert metrics.number == second
    metrics.measured(3)
    assert metrics.number != second


@pytest.mark.parametrize("most", [1, 3, 64, 1000])
def test_what_is_counted_is_that_share_of_all(metrics: Any, most: int) -> None:
    for steps in range(1, 5):
        metrics.measured(steps)
        counted = sum(metrics.count(most) for _ in range(1000))
        assert counted == pytest.approx(metrics.number * most * 1000, abs=1)
