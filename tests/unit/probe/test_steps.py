"""When the probe calls a run steady; and that the probe's files are Python 3.9."""

import ast
import importlib
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import xmem_slurm

PROBE = Path(xmem_slurm.__file__).parent / "probe"
_TAKE = "import os; os.sched_setaffinity(0, {{{}}})"
_WORK = """
import time; from _xmem.process.budget import TimeLeft; from _xmem.process.clock import Clock
clock = Clock(TimeLeft({{}}))
time.sleep(0.2)  # until the others have begun
own, wall, worked = clock.now(), time.monotonic(), time.process_time()
while time.process_time() < worked + 0.3: pass
print(clock.now() - own, time.monotonic() - wall)
"""


@pytest.mark.parametrize(
    "file", sorted(PROBE.rglob("*.py")), ids=lambda file: str(file.relative_to(PROBE))
)
def test_the_probe_is_python_3_9(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe's modules be found, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(PROBE)


@pytest.fixture
def steps() -> ModuleType:
    watched = importlib.import_module("_xmem.process.alive").watched
    if not hasattr(Optimizer.__init__, "__wrapped__"):
        Optimizer.__init__ = watched(Optimizer.__init__, Optimizer)  # type: ignore[method-assign]
    return importlib.import_module("_xmem.process.steps")


def test_looking_for_objects_leaves_other_threads_alone() -> None:
    """A tuple that another thread is building must not be held: CPython could not give it its
    size."""
    instances = importlib.import_module("_xmem.process.alive").instances
    optimizer = Optimizer(Parameter())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        looking = threading.Thread(target=lambda: [instances(Optimizer) for _ in range(20)])
        looking.start()
        while looking.is_alive():
            assert len(tuple(number for number in range(23))) == 23
    finally:
        sys.setswitchinterval(interval)
    assert [thing for thing in instances(Optimizer) if thing is optimizer] == [optimizer]


class Parameter:
    """What an optimizer holds; a weak reference to it can be had."""


class Optimizer:
    def __init__(self, *parameters: Parameter) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": []}, {"params": list(parameters)}]


def until_repeating(steps: ModuleType, run: Iterator[tuple[Optimizer, int, float]]) -> int | None:
    """Return how many steps of a run (optimizer, peak, time) it took until they only repeat
    themselves, or None."""
    counted, before = steps.Steps(), 0
    for number, (optimizer, peak, now) in enumerate(run, 1):
        counted.stepped(optimizer, peak > before, now)
        before = max(before, peak)
        if counted.repeat() and not counted.waits(Optimizer, now):
            return number
    return None


def test_steps_repeat_themselves_after_three_without_a_new_peak(steps: ModuleType) -> None:
    optimizer = Optimizer(Parameter())
    assert until_repeating(steps, ((optimizer, min(i, 2), 5.0 * i) for i in range(1, 99))) == 5


def test_in_a_brief_run_two_steps_like_earlier_ones_are_enough(steps: ModuleType) -> None:
    course = importlib.import_module("_xmem.course.course")
    for brief, met, enough in (
        (True, "nnyy", 2),
        (True, "nnyn", 3),
        (True, "n", 3),
        (False, "nnyy", 3),
    ):
        run = course.Course(None, {"XMEM_BRIEF": "1"} if brief else {})
        for each in met:
            run.stepped(0, 0, each == "y", begins=False)
        assert run.steady_steps() == enough
    counted, optimizer = steps.Steps(), Optimizer(Parameter())
    repeats = []
    for grew in (True, True, False, False):
        counted.stepped(optimizer, grew, 0.0)
        repeats.append(counted.repeat(steps.ALIKE_STEPS))
    assert repeats == [False, False, False, True]


def test_a_peak_that_grows_with_every_step_repeats_itself_in_the_end(steps: ModuleType) -> None:
    optimizer = Optimizer(Parameter())
    assert until_repeating(steps, ((optimizer, i // 2, 1.0 * i) for i in range(60))) is None
    assert (
        until_repeating(steps, ((optimizer, i // 2, 1.0 * i) for i in range(99)))
        == steps.MANY_STEPS
    )


def test_every_optimizer_must_repeat_itself(steps: ModuleType) -> None:
    often, seldom = Optimizer(Parameter()), Optimizer(Parameter())
    run = ((seldom if i % 5 == 4 else often, 7 if i > 3 else 5, 1.0 * i) for i in range(99))
    # the step at which `seldom` repeats itself for the third time
    assert until_repeating(steps, run) == 20


def test_a_new_optimizer_takes_the_place_of_one_that_is_left_lying(steps: ModuleType) -> None:
    first, second = Optimizer(Parameter()), Optimizer(Parameter())
    run = ((first if i < 50 else second, 7 if i < 50 else 9, 1.0 * i) for i in range(30, 99))
    counted, before = steps.Steps(), 0
    repeats = []
    for optimizer, peak, now in run:
        counted.stepped(optimizer, peak > before, now)
        before = peak
        repeats.append(counted.repeat())
    assert repeats[19:25] == [True, False, False, False, False, False]
    assert repeats[-1]
    assert first.param_groups


def test_an_optimizer_made_anew_for_each_step_is_one(steps: ModuleType) -> None:
    parameter = Parameter()
    assert until_repeating(steps, ((Optimizer(parameter), 7, 1.0 * i) for i in range(99))) == 4


def test_an_optimizer_whose_model_is_gone_is_not_waited_for(steps: ModuleType) -> None:
    def folds() -> Iterator[tuple[Optimizer, int, float]]:
        for fold in range(2):
            optimizer = Optimizer(Parameter())
            for step in range(2 + 2 * fold):
                yield optimizer, 7 + fold, 1.0 * (2 * fold + step)

    assert until_repeating(steps, folds()) == 6


def test_an_optimizer_that_never_steps_is_waited_for_ten_seconds(steps: ModuleType) -> None:
    optimizer, waiting = Optimizer(Parameter()), Optimizer(Parameter())
    assert until_repeating(steps, ((optimizer, 7, 1.0 * i) for i in range(99))) == 11
    assert waiting.param_groups


def test_an_optimizer_without_parameters_counts_for_nothing(steps: ModuleType) -> None:
    optimizer, empty = Optimizer(Parameter()), Optimizer()
    run = ((each, 7, 1.0 * i) for i in range(99) for each in (empty, optimizer))
    assert until_repeating(steps, run) == 6
    counted = steps.Steps()
    assert (counted.stepped(empty, True, 0.0), counted.fewest(), counted.number) == (0, 0, 0)


@pytest.mark.parametrize(
    ("order", "leads"),
    [
        ("aaa", "aaa"),
        ("ababab", "aaa"),
        ("bbabbabba", "bbbbbb"),
        ("aaaaaaaabbbbbbb", "aaaaaaaabbb"),
        ("aabbbbbbbbaaa", "aabbbbbb"),
        ("abcabc", "aa"),
    ],
    ids=["one", "two in turn", "one oftener", "one after another", "and back", "three"],
)
def test_a_script_comes_round_by_one_optimizer_until_that_is_left_lying(
    steps: ModuleType, order: str, leads: str
) -> None:
    optimizers, counted = {name: Optimizer(Parameter()) for name in order}, steps.Steps()
    found = []
    for name in order:
        counted.stepped(optimizers[name], False, 0.0)
        found += [name] if counted.leads else []
    assert "".join(found) == leads


def clock_of(environ: Mapping[str, str]) -> Any:
    left = importlib.import_module("_xmem.process.budget").TimeLeft(environ)
    return importlib.import_module("_xmem.process.clock").Clock(left)


def test_the_clock_stands_still_while_others_have_the_cpu(steps: ModuleType) -> None:
    """One process works for 0.3 s of CPU time beside three that take the same CPU."""
    clock = clock_of({})
    cpu = min(os.sched_getaffinity(0))
    others = [
        subprocess.Popen([sys.executable, "-c", f"{_TAKE}\nwhile True: pass".format(cpu)])
        for _ in range(3)
    ]
    try:
        code = f"{_TAKE}\n{_WORK}".format(cpu)
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=PROBE, capture_output=True, text=True, check=True
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    own, wall = map(float, found.stdout.split())
    assert wall > 0.5
    assert 0.25 < own < 0.25 + wall / 4
    before = clock.now()
    time.sleep(0.2)
    assert clock.now() - before > 0.1  # waiting for something else is time


def test_without_an_account_it_is_wall_time(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = importlib.import_module("_xmem.process.clock")
    monkeypatch.setattr(clock, "_FILE", "/nowhere")
    assert abs(clock_of({}).now() - time.monotonic()) < 0.1


def test_in_a_sandbox_it_is_what_that_counts(steps: ModuleType, tmp_path: Path) -> None:
    """So workers that wait for a CPU are no time of the process that waits for them."""
    (tmp_path / "spent").write_bytes(struct.pack("d", 7.5))
    assert clock_of({"XMEM_TRACE_DIR": str(tmp_path)}).now() == 7.5
