"""A step of many micro-batches is counted without all of them being made."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import xmem_slurm

A, B = object(), object()


class Counted:
    """A process whose calls can be skipped once two of a kind were made, and what the stand-ins are
    told."""

    def __init__(self, counting: Any) -> None:
        self.journal = SimpleNamespace(numbers=0)
        self.counting = counting(self.journal)
        self.made: dict[object, int] = {}
        self.passes, self.steps = list[tuple[int, bool]](), list[int]()
        self.served, self.allocated = 0, list[int]()

    def xmem_work_pass(self, number: Any, is_whole: Any) -> None:
        self.passes.append((number.value, bool(is_whole.value)))

    def xmem_work_step(self, backwards: Any, allocated: Any) -> None:
        self.steps.append(backwards.value)
        self.allocated.append(allocated.value)

    def calls(self, *kinds: object) -> None:
        """Call modules, then go back."""
        for kind in kinds:
            if self.counting.wants(kind) or self.made.get(kind, 0) < 2:
                self.made[kind] = self.made.get(kind, 0) + 1
            else:
                self.journal.numbers += 1
        self.counting.passed(self)

    def step(self, *passes: tuple[object, ...]) -> None:
        for kinds in passes:
            self.calls(*kinds)
            self.served += 100
        self.counting.stepped(self, self.served)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return one with the probe's module, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return Counted(importlib.import_module("_xmem.record.counting").Counting)


def test_of_many_micro_batches_two_are_made_and_each_step_counts(process: Counted) -> None:
    for _ in range(3):
        process.step(*[(A,)] * 64)
    assert process.made[A] == 2
    assert process.passes[:3] == [(0, True), (0, True), (0, False)]
    assert process.steps == [64, 64, 64]
    assert process.allocated == [6400, 6400, 6400], "what skipped calls allocate is in there"
    assert process.counting.is_over()


def test_without_accumulation_as_many_steps_are_made_as_are_counted(process: Counted) -> None:
    for _ in range(5):
        process.step((A,))
    assert process.steps == [1, 1, 1, -1, -1], "what is skipped later is not counted"


def test_what_was_in_no_pass_that_was_made_is_made_again(process: Counted) -> None:
    """Where passes mix calls as none did that was made whole, steps do not count, and the next ones
    are made."""
    process.step((A,), (A,), (B,), (B,))
    process.step((A, B))
    assert process.steps[-1] == -1, "no pass of both was made"
    process.step((A, B))
    process.step((A, B))
    assert process.steps[-2:] == [1, 1]


def test_who_never_goes_back_is_remembered_no_longer(process: Counted) -> None:
    for _ in range(5000):
        process.counting.wants(A)
    assert len(process.counting._kinds) < 5000
    process.counting.passed(process)
    assert process.passes == [(-1, True)]
