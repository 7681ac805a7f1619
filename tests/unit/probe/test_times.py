"""Times: numbers like the clock's, which notice that what they are compared with is to come, and
may leap there."""

import importlib
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xmem_slurm

START = 1.8e9


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the probe's module, which only the job's Python has on its path; this one counts as
    the job's own."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return importlib.import_module("_xmem.process.times")


@pytest.fixture
def clock(module: Any) -> Callable[..., tuple[Any, Callable[[], Any]]]:
    def clock(*, leaps: bool = False) -> tuple[Any, Callable[[], Any]]:
        seconds: Iterator[float] = iter(START + number for number in range(10**6))
        times = module.Times(leaps)
        return times, times.told(lambda: next(seconds))

    return clock


def doubts(times: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    times.doubt(lambda code, detail: found.append((code, detail.partition(":")[0])))
    return found


WAITING: list[Callable[[Any, Any], bool]] = [
    lambda start, now: now() - start > 1800,
    lambda start, now: 1800 <= now() - start,  # noqa: SIM300
    lambda start, now: (now() - start) / 60 > 30,
    lambda start, now: (now() - start) // 3600 >= 1,
    lambda start, now: (now() - start) * 1000 > 1.8e6,
    lambda start, now: now() > start + 1800,
    lambda start, now: start + 1800 < now(),
    lambda start, now: START + 1800 - now() < 0,
    lambda start, now: -(start + 1800 - now()) > 60,
    lambda start, now: now() > START + 1800,
    lambda start, now: sum([now() - start]) > 1800,
]


@pytest.mark.parametrize("ends", WAITING)
def test_a_time_that_does_not_come_is_a_doubt_and_comes_where_time_leaps(
    ends: Callable[[Any, Any], bool], clock: Callable[..., Any]
) -> None:
    times, now = clock()
    start = now()
    assert not any(ends(start, now) for _ in range(100))
    assert doubts(times) == [("clock", Path(__file__).name)]
    times, now = clock(leaps=True)
    start = now()
    assert [ends(start, now) for _ in range(3)] == [False, True, True]
    assert now() - START > 1800
    assert doubts(times) == [("both-ways", Path(__file__).name)]


def test_each_time_that_is_waited_for_anew_comes_when_they_have_doubled(
    clock: Callable[..., Any],
) -> None:
    _, now = clock(leaps=True)
    last, met = now(), []
    for step in range(1, 41):
        if now() - last > 600:
            met.append(step)
            last = now()
    assert met == [2, 4, 8, 16, 32]


NOT_WAITING: list[Callable[[Any, Any], bool]] = [
    lambda start, now: now() - start > 0,
    lambda start, now: now() - start < float("inf"),
    lambda start, now: (now() - start) < (now() - start) * 2,
    lambda start, now: 32 / (now() - start) > 1e9,
    lambda start, now: now() - start == 1800,
]


@pytest.mark.parametrize("asked", NOT_WAITING)
def test_what_has_passed_or_never_comes_or_is_no_time_is_no_doubt(
    asked: Callable[[Any, Any], bool], clock: Callable[..., Any]
) -> None:
    times, now = clock()
    start = now()
    for _ in range(20):
        asked(start, now)
    assert doubts(times) == []


def test_a_line_that_met_both_is_no_doubt(clock: Callable[..., Any]) -> None:
    times, now = clock()
    start = now()
    assert sum(now() - start > 10 for _ in range(20)) == 10
    assert doubts(times) == [("both-ways", Path(__file__).name)]


def test_a_time_is_a_number_like_any_other(clock: Callable[..., Any], module: Any) -> None:
    _, now = clock()
    time = now()
    assert (time, hash(time), repr(time), json.dumps(time)) == (
        START,
        hash(START),
        "1800000000.0",
        "1800000000.0",
    )
    copied = pickle.loads(pickle.dumps(time))
    assert (copied, type(copied)) == (START, float)
    assert type(time % 60) is type(2 / time) is type(abs(time)) is type(round(time, 1)) is float
    assert type(int(time)) is int
    assert isinstance(time + 1, module.Time)
    assert time.__mul__([1]) is time.__truediv__([1]) is NotImplemented, (
        "nothing is computed of what is no number"
    )
    with pytest.raises(TypeError):
        time + "1"
    with pytest.raises(TypeError):
        assert time < "1"


def test_packages_get_the_plain_clock(clock: Callable[..., Any]) -> None:
    _, now = clock(leaps=True)
    package = {"now": now, "__name__": "torch.utils.data"}
    exec("found = now()", package)
    assert type(package["found"]) is float
