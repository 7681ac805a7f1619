"""Metrics: zeros; or by turns each is a record in its direction, all can be shares, and what is
counted has theirs."""

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmem_slurm


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what makes those of a process, by the probe's module, which only the job's Python has
    on its path."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return importlib.import_module("_xmem.values.metrics").Metrics


def test_by_turns_they_are_lower_and_higher_than_ever_before(made: Callable[..., Any]) -> None:
    metrics, lows, highs = made("turns"), [], []
    first = metrics.number("a.py:1")
    for steps in range(1, 400):
        metrics.measured(steps)
        number = metrics.number("a.py:1")
        assert 0 < number < 1
        (lows if metrics.truth("a.py:1", "is it better?") else highs).append(number)
    assert all(later < before for before, later in itertools.pairwise([first, *lows]))
    assert all(later > before for before, later in itertools.pairwise([first, *highs]))
    assert len(lows) - len(highs) == 1


def test_a_line_that_reads_every_other_turn_has_turns_of_its_own(made: Callable[..., Any]) -> None:
    metrics, lower = made("turns"), []
    for steps in range(1, 13):
        metrics.measured(steps)
        if steps % 2:
            lower.append(metrics.truth("a.py:1", "is it better?"))
    assert lower == [False, True] * 3


def test_every_other_line_goes_the_other_way(made: Callable[..., Any]) -> None:
    metrics = made("turns")
    ways = []
    for steps in range(1, 4):
        metrics.measured(steps)
        ways.append(
            [metrics.truth(place, "is it better?") for place in ("a.py:1", "a.py:2", "a.py:3")]
        )
    assert ways == [[False, True, False], [True, False, True], [False, True, False]]


def test_a_turn_lasts_until_there_was_a_step(made: Callable[..., Any]) -> None:
    metrics = made("turns")
    numbers = []
    for steps in (1, 1, 2):
        metrics.measured(steps)
        numbers.append(metrics.number("a.py:1"))
    assert numbers[0] == numbers[1] != numbers[2]
    assert metrics.most_turns == 2


def test_calls_without_gradients_begin_a_turn_only_where_nothing_else_does(
    made: Callable[..., Any],
) -> None:
    metrics = made("turns")
    turns = []
    for steps, shown in ((0, True), (1, False), (2, True), (3, False), (3, True)):
        metrics.measured(steps, shown=shown)
        metrics.number("a.py:1")
        turns.append(metrics.most_turns)
    assert turns == [1, 2, 3, 3, 4]


@pytest.mark.parametrize("most", [1, 3, 64, 1000])
def test_what_is_counted_is_that_share_of_all(made: Callable[..., Any], most: int) -> None:
    metrics = made("turns")
    for steps in range(1, 5):
        metrics.measured(steps)
        counted = sum(metrics.count(most, "a.py:1") for _ in range(1000))
        assert counted == pytest.approx(metrics.number("a.py:1") * most * 1000, abs=1)


def test_still_all_are_the_same_and_no_zeros_and_so_is_the_share_that_is_right(
    made: Callable[..., Any],
) -> None:
    metrics = made("still")
    for steps in range(4):
        metrics.measured(steps)
        assert (metrics.number("a.py:1"), metrics.count(100, "a.py:3")) == (0.75, 75)
        assert not metrics.truth("a.py:2", "is it better?")


def test_without_turns_all_are_zeros_and_everything_is_right(made: Callable[..., Any]) -> None:
    metrics = made("zeros")
    for steps in range(4):
        metrics.measured(steps)
        assert (metrics.number("a.py:1"), metrics.count(7, "a.py:3")) == (0.0, 7)
        assert not metrics.truth("a.py:2", "is it better?")
    assert metrics.most_turns == 4
