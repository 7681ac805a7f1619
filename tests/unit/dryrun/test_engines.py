"""How often a job is run dry, and what is told where it stops: by stand-ins for the runs."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from xmem_slurm import trace_file
from xmem_slurm.allocator.replay import replay
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import engines
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult, drive
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder, Origins
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.trace import CRASH, Event, Noted, Op, ScriptFailure, Seen, Trace
from xmem_slurm.units import GIB

GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
H200 = load_catalogue()["h200"]
BEFORE_THE_GPU = dataclasses.replace(
    GPT2, allocations=[], events=[], marks=[], recorded={}, state="exit"
)
ON_THE_GPU = dataclasses.replace(GPT2, marks=[], state="exit")
READ = Noted(Doubt.VALUE_READ, "")
Result = Trace | NoEstimate


class Runs:
    """Stands for `runner.run`: what it gives, one after the other, at `cost` seconds each; notes
    the environments."""

    def __init__(self, *results: Result, cost: float = 1.0) -> None:
        self.results, self.cost = iter(results), cost
        self.asked: list[tuple[str, bool]] = []
        self.asserting: list[bool] = []
        self.numbers: list[str] = []
        self.clocks: list[str] = []

    def __call__(self, order: DryRunOrder) -> DryRunResult:
        self.asked.append((order.engine, order.origins))
        self.asserting.append("PYTHONOPTIMIZE" not in order.environ)
        self.numbers.append(order.environ.get("XMEM_NUMBERS", "zeros"))
        self.clocks.append(order.environ.get("XMEM_CLOCK", "real"))
        result = next(self.results)
        return DryRunResult(
            result if isinstance(result, NoEstimate) else [result], Spent(self.cost)
        )


@pytest.fixture
def run() -> Callable[..., Sequence[Trace]]:
    def run(runs: Runs, *, origins: Origins = "none") -> Sequence[Trace]:
        job = Job(b"#!/bin/sh\n", (), Path("/"), {})
        return drive(engines.run(DryRunOrder(job, H200, Budget(seconds=60), origins=origins)), runs)

    return run


Run = Callable[..., Sequence[Trace]]


@pytest.mark.parametrize(
    "failed",
    [
        dataclasses.replace(
            BEFORE_THE_GPU, failure=trace_file.failure("ValueError: no such optimizer (train.py:3)")
        ),
        dataclasses.replace(
            BEFORE_THE_GPU, failure=trace_file.failure("SystemExit: 2 (train.py:3): usage")
        ),
        dataclasses.replace(
            ON_THE_GPU,
            failure=trace_file.failure("ValueError: no such optimizer (train.py:3)"),
            doubts=[],
        ),
        dataclasses.replace(
            ON_THE_GPU,
            failure=trace_file.failure("FileNotFoundError: data.bin (train.py:3)"),
            doubts=[READ],
        ),
        dataclasses.replace(
            ON_THE_GPU,
            failure=trace_file.failure("TypeError: no argument 'x' (train.py:3)"),
            doubts=[READ],
        ),
    ],
    ids=["before the GPU", "usage", "no values", "a file", "a call"],
)
def test_what_values_cannot_cause_is_final(run: Run, failed: Trace) -> None:
    runs = Runs(failed)
    assert list(run(runs)) == [failed]
    assert runs.asked == [("auto", "none")]


def test_what_zeros_may_have_caused_is_tried_with_real_steps_and_told_once(run: Run) -> None:
    failed = dataclasses.replace(
        ON_THE_GPU, failure=trace_file.failure("ValueError: loss is 0 (train.py:3)"), doubts=[READ]
    )
    runs = Runs(failed, GPT2)
    (found,) = run(runs)
    assert (found.error, runs.asked) == (None, [("auto", "none"), ("profile", "none")])
    (same,) = run(Runs(failed, failed))
    assert same.error == failed.error
    (other,) = run(Runs(failed, NoEstimate("it needs 9 GB here")))
    assert (
        other.error
        == "ValueError: loss is 0 (train.py:3) (real steps on the CPU: it needs 9 GB here)"
    )


def test_real_first_steps_have_room_for_what_came_later_on_stand_ins(run: Run) -> None:
    number, last = len(GPT2.allocations), GPT2.allocations[-1]
    shaped = dataclasses.replace(
        GPT2, doubts=[Noted(Doubt.VALUE_SHAPE, "shapes follow from values")]
    )
    more = dataclasses.replace(
        shaped,
        allocations=[*GPT2.allocations, last._replace(size=16 * GIB)],
        events=[*GPT2.events, Event(Op.ALLOC, number)],
    )
    three = dataclasses.replace(GPT2, state="steady")
    two = dataclasses.replace(three, marks=[mark for mark in GPT2.marks if mark.kind == "step"][:2])
    to_its_end = dataclasses.replace(three, state="exit")
    for whole, real, said in (
        (shaped, two, False),
        (more, two, True),
        (more, three, True),
        (more, to_its_end, False),
    ):
        runs = Runs(whole, real)
        (found,) = run(runs)
        assert ([engine for engine, _ in runs.asked], found.allocations) == (
            ["auto", "profile"],
            real.allocations,
        )
        least, most = (replay(each).peak_allocated_bytes for each in (real, whole))
        shares = [each.share for each in found.doubts if each.doubt is Doubt.LATER]
        assert shares == ([most / least - 1] if said else [])


def test_an_assertion_of_zeros_is_left_out_before_real_steps_are_taken(run: Run) -> None:
    failed = dataclasses.replace(
        ON_THE_GPU,
        failure=trace_file.failure("AssertionError: 1 < loss (train.py:3)"),
        doubts=[READ],
    )
    runs = Runs(failed, GPT2)
    (found,) = run(runs)
    assert (found.failed, runs.asked, runs.asserting) == (
        False,
        [("auto", "none")] * 2,
        [True, False],
    )
    assert "run without assertions" in found.doubts[-1].detail
    again = Runs(failed, failed, GPT2)
    (real,) = run(again)
    assert (real.failed, [engine for engine, _ in again.asked]) == (
        False,
        ["auto", "auto", "profile"],
    )
    unread = Runs(dataclasses.replace(failed, doubts=[]))
    assert run(unread)[0].failed
    assert unread.asserting == [True]


@pytest.mark.parametrize(
    "words", ["ZeroDivisionError: division by zero", "ValueError: math domain error"]
)
def test_a_script_that_computing_with_zeros_stopped_early_or_late_goes_on_with_others(
    run: Run, words: str
) -> None:
    late = dataclasses.replace(
        GPT2, failure=trace_file.failure(f"{words} (train.py:3)"), doubts=[READ]
    )
    whole = reading(GPT2, 1)
    for stopped in (late, dataclasses.replace(late, marks=[], state="exit")):
        runs = Runs(stopped, whole, whole)
        assert (list(run(runs)), runs.numbers) == ([whole], ["zeros", "still", "turns"])
        for one_course in (Runs(stopped, whole, cost=25.0), Runs(stopped, late, whole)):
            (found,) = run(one_course)
            assert found.error is None
            assert found.doubts[-1].detail.startswith("run with other numbers for values")
    again = Runs(late, late, late)
    assert (list(run(again)), again.numbers) == ([late], ["zeros", "still", "turns"])
    unread = Runs(dataclasses.replace(late, doubts=[]))
    run(unread)
    assert unread.numbers == ["zeros"]


def reading(trace: Trace, turns: int, *, end: bool = True) -> Trace:
    noted = Noted(Doubt.METRICS_READ, "losses or scores were read in so many turns", turns)
    return dataclasses.replace(trace, seen=Seen(trace.steps, end=end), doubts=[noted])


def test_a_script_that_reads_losses_again_and_again_is_run_by_both_courses(run: Run) -> None:
    smaller = [each._replace(size=each.size // 2) for each in GPT2.allocations]
    less = dataclasses.replace(GPT2, allocations=smaller)
    for first, other in (
        (less, GPT2),
        (GPT2, less),
        (GPT2, dataclasses.replace(GPT2, state="signal")),
    ):
        runs = Runs(reading(first, 3), reading(other, 3))
        (found,) = run(runs)
        assert (runs.numbers, found.allocations) == (["zeros", "turns"], GPT2.allocations)
    first, then = reading(GPT2, 1), reading(GPT2, 3)
    assert engines._turns([first, then]) == 3, "a script that trains, and one that tests"
    assert engines._turns([first, dataclasses.replace(then, rank=1)]) == 0
    for once in (reading(GPT2, 2), reading(GPT2, 9, end=False)):
        alone = Runs(once)
        assert (list(run(alone)), alone.numbers) == ([once], ["zeros"])


def test_what_let_a_script_go_on_holds_for_the_other_course_too(run: Run) -> None:
    lost = dataclasses.replace(
        ON_THE_GPU, failure=trace_file.failure("SystemError: no result"), doubts=[]
    )
    runs = Runs(lost, reading(GPT2, 3), reading(GPT2, 3))
    (found,) = run(runs, origins="hook")
    assert (runs.asked, runs.numbers[-1]) == (
        [("auto", "hook"), *[("auto", "frames")] * 2],
        "turns",
    )
    assert found.came_to_its_end
    words = trace_file.failure("AssertionError: 1 < loss (train.py:3)")
    runs = Runs(
        dataclasses.replace(ON_THE_GPU, failure=words, doubts=[READ]),
        reading(GPT2, 3),
        reading(GPT2, 3),
    )
    run(runs)
    assert (runs.asserting, runs.numbers[-1]) == ([True, False, False], "turns")


@pytest.mark.parametrize(("turns", "said"), [(3, True), (101, True), (102, False)])
def test_where_there_is_no_time_for_the_other_course_that_is_said(
    turns: int, said: bool, run: Run
) -> None:
    runs = Runs(reading(GPT2, turns), cost=40.0)
    (found,) = run(runs)
    assert runs.numbers == ["zeros"]
    assert any("no better" in noted.detail for noted in found.doubts) == said


@pytest.mark.parametrize(("epochs", "runs_again"), [(1, False), (4, False), (5, True), (40, True)])
def test_the_other_course_needs_room_for_some_of_many_epochs(
    epochs: int, runs_again: bool, run: Run
) -> None:
    """35 of 60 seconds are spent: three of five epochs have room in what is left, of four not."""
    first = reading(GPT2, 3)
    assert first.seen is not None
    seen = dataclasses.replace(first.seen, epochs=(epochs, epochs))
    first = dataclasses.replace(first, seen=seen)
    runs = Runs(first, reading(GPT2, 3), cost=35.0)
    (found,) = run(runs)
    assert runs.numbers == ["zeros", *["turns"] * runs_again]
    assert found.came_to_its_end
    assert any("no better" in noted.detail for noted in found.doubts) != runs_again


def test_a_condition_that_went_both_ways_in_two_runs_is_no_doubt(run: Run) -> None:
    conditions = [f"a condition that is not known, false here (train.py:{line})" for line in (3, 4)]
    said = [Noted(Doubt.ASSUMED_VALUES, each) for each in conditions]
    first = reading(GPT2, 3)
    first = dataclasses.replace(first, doubts=[*first.doubts, *said])
    met = dataclasses.replace(reading(GPT2, 3), doubts=[Noted(Doubt.BOTH_WAYS, said[0].detail)])
    stopped = dataclasses.replace(met, seen=Seen(GPT2.steps, end=False))
    for other, left in ((met, said[1:]), (stopped, said)):
        (found,) = run(Runs(first, other))
        assert [each for each in found.doubts if each.doubt is Doubt.ASSUMED_VALUES] == left


def test_a_script_that_waits_for_a_time_is_run_again_with_a_clock_that_leaps(run: Run) -> None:
    """What needs more stands; no doubt is what came there, if that run came to its end."""
    waits = [Noted(Doubt.CLOCK, f"train.py:{line}") for line in (3, 4)]
    first = dataclasses.replace(GPT2, seen=Seen(GPT2.steps, end=True), doubts=waits)
    less = dataclasses.replace(
        first, allocations=[each._replace(size=each.size // 2) for each in GPT2.allocations]
    )
    both = [Noted(Doubt.BOTH_WAYS, waits[0].detail)]
    same, stopped = (
        dataclasses.replace(first, seen=Seen(GPT2.steps, end=end), doubts=both)
        for end in (True, False)
    )
    more = dataclasses.replace(stopped, doubts=[*both, waits[1]])
    for one, other, left in (
        (first, same, waits[1:]),
        (less, more, waits[1:]),
        (first, stopped, waits),
    ):
        runs = Runs(one, other)
        (found,) = run(runs)
        assert (runs.clocks, found.allocations) == (["real", "leaps"], GPT2.allocations)
        assert sorted({each.detail for each in found.doubts if each.doubt is Doubt.CLOCK}) == [
            each.detail for each in left
        ]
    runs = Runs(first, cost=40.0)
    (found,) = run(runs)
    assert (runs.clocks, found.doubts) == (["real"], waits)


def test_torchs_own_frames_only_where_the_hook_for_them_broke_it(run: Run) -> None:
    own = dataclasses.replace(
        BEFORE_THE_GPU,
        failure=trace_file.failure("ModuleNotFoundError: No module named 'x' (train.py:3)"),
    )
    lost = dataclasses.replace(
        ON_THE_GPU,
        failure=trace_file.failure("SystemError: returned NULL without setting an exception"),
        doubts=[],
    )
    late = dataclasses.replace(GPT2, failure=ScriptFailure(CRASH, CRASH))
    for result, asked in ((GPT2, 1), (own, 1), (lost, 2), (late, 2)):
        runs = Runs(result, GPT2)
        run(runs, origins="hook")
        assert runs.asked == [("auto", "hook"), ("auto", "frames")][:asked], result.error


def test_a_script_that_fails_without_the_hook_too_failed_by_its_own_exception(run: Run) -> None:
    lost, own = (
        dataclasses.replace(ON_THE_GPU, failure=trace_file.failure(words), doubts=[])
        for words in (
            "SystemError: error return without exception set",
            "AttributeError: no attribute 'bdy'",
        )
    )
    assert list(run(Runs(lost, own), origins="hook")) == [own]


def test_the_first_trace_stands_where_it_cannot_be_made_again(run: Run) -> None:
    late = dataclasses.replace(GPT2, failure=ScriptFailure(CRASH, CRASH))
    assert list(run(Runs(late, NoEstimate("the dry run was stopped")), origins="hook")) == [late]
    assert list(
        run(
            Runs(late, dataclasses.replace(ON_THE_GPU, failure=trace_file.failure("x"), doubts=[])),
            origins="hook",
        )
    ) == [late]
    less = dataclasses.replace(GPT2, marks=[], state="signal")
    assert list(run(Runs(late, less, cost=40.0), origins="hook")) == [late]


def test_a_run_that_the_hook_broke_late_is_made_again_with_the_time_that_is_left(run: Run) -> None:
    lost = dataclasses.replace(
        ON_THE_GPU,
        failure=trace_file.failure("SystemError: error return without exception set"),
        doubts=[],
    )
    on = dataclasses.replace(GPT2, state="signal")
    assert list(run(Runs(lost, on, cost=40.0), origins="hook")) == [on]


def test_another_course_counts_if_it_comes_to_the_end(run: Run) -> None:
    cut = reading(GPT2, 3)
    cut = dataclasses.replace(
        cut, doubts=[*cut.doubts, Noted(Doubt.NOT_REACHED, "the script's own end")]
    )
    for other, said in ((reading(GPT2, 3), False), (cut, True)):
        runs = Runs(reading(GPT2, 3), other, cost=20.0)
        (found,) = run(runs)
        assert runs.numbers == ["zeros", "turns"]
        assert any("no better" in noted.detail for noted in found.doubts) == said
