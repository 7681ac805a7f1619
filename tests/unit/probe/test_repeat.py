"""What stands in the trace for calls that are skipped: events of a call, the journal of them, and
where they go."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import xmem_slurm


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the probe's module, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return importlib.import_module("_xmem.repeat.events")


def alloc(address: int, size: int = 1024) -> tuple[str, int, int, int, int]:
    return ("alloc", address, size, 0, 7)


def free(address: int, size: int = 1024, waits: int = 0) -> tuple[str, int, int, int, int]:
    """Return a free that is completed after so many others' notes."""
    return ("free_requested", address, size, 0, waits)


def test_a_call_has_its_own_blocks_and_ends_without_what_the_script_gets(
    events: ModuleType,
) -> None:
    notes = [alloc(1), alloc(2), free(1), free(99), alloc(1), alloc(3)]
    found, held = events.events(notes, {}, (3, 99), 0)
    assert [(entry.action, entry.block) for entry in found.entries if entry.action != "free_requested"] == [
        ("alloc", 0), ("alloc", 1), ("free_completed", 0), ("alloc", 2), ("alloc", 3),
    ]  # fmt: skip
    assert [block and block.number for block in found.script_blocks] == [3, None]
    assert [block.number for block in found.remaining] == [1, 2]
    assert (found.peak, found.allocations, found.blocks) == (3 * 1024, 3, 4)
    assert {address: block.number for address, block in held.items()} == {2: 1, 1: 2}


def test_a_gradient_where_an_activation_was_is_freed_at_the_end(events: ModuleType) -> None:
    forward, held = events.events([alloc(1), alloc(2)], {}, (), 0)
    back, _ = events.events([free(1), alloc(1), free(2)], held, (), forward.blocks, ends=True)
    assert back.remaining == ()
    assert [entry.block for entry in back.entries if entry.action == "free_completed"] == [0, 1, 2]


def test_a_free_that_waits_for_another_stream_is_completed_where_it_was(
    events: ModuleType,
) -> None:
    notes = [alloc(1), free(1, waits=2), alloc(2), free(2, waits=9), alloc(3)]
    found, _ = events.events(notes, {}, (), 0)
    assert [(entry.action, entry.block) for entry in found.entries] == [
        ("alloc", 0), ("free_requested", 0), ("alloc", 1), ("free_requested", 1),
        ("free_completed", 0), ("alloc", 2), ("free_completed", 1),
    ]  # fmt: skip
    assert found.peak == 1024


def test_what_is_freed_at_once_has_no_order(events: ModuleType) -> None:
    one, other, third = (
        events.events([alloc(1), alloc(2, 2048), *last], {}, (), 0)[0]
        for last in ([free(1), free(2)], [free(2), free(1)], [free(1), alloc(3), free(2)])
    )
    assert events.alike(one, other)
    assert not events.alike(one, third)


def test_a_sum_stands_where_the_gradient_was_that_it_is_added_to(
    events: ModuleType, journal: Any
) -> None:
    """Others gave what lies at 50; torch adds the call's own, at 1, to it in new memory."""
    notes = [alloc(1), alloc(2), free(50), free(1)]
    found, _ = events.events(notes, {}, (2,), 0, added_to={50}, ends=True)
    assert (found.sums, found.allocations, found.freed) == ({1}, 2, 2048)
    journal.note(1, found, added_to={1: 4096})
    entries, _ = journal.next(100, importlib.import_module("_xmem.repeat.journal").MARK).noted()
    own, summed = entries[0][1], entries[1][1]
    assert [(action, at) for action, at, *_ in entries if action != "free_requested"] == [
        ("alloc", own), ("alloc", summed), ("free_completed", 4096), ("free_completed", own),
        ("moved_from", summed), ("moved_to", 4096),
    ]  # fmt: skip


def test_a_sum_is_freed_at_once_where_nobody_knows_what_it_is_added_to(events: ModuleType) -> None:
    """Or where it does not last: what it is added to stands for it."""
    notes = [alloc(1), alloc(2), free(50), free(1)]
    lasting, _ = events.events(notes, {}, (2,), 0, added_to={50}, ends=True)
    passing, _ = events.events([*notes, free(2)], {}, (None,), 0, added_to={50}, ends=True)
    unknown = events.without_sums(lasting, lasting.sums)
    for found in (passing, unknown):
        assert [entry.block for entry in found.entries if entry.action == "free_completed"] == [
            1,
            0,
        ]
        assert (found.script_blocks, found.sums) == ((None,), frozenset())


def test_a_gradient_that_torch_keeps_for_others_is_found_by_its_size(events: ModuleType) -> None:
    notes = [alloc(1), alloc(2, 2048), alloc(3)]
    found, _ = events.events(notes, {}, (None, None), 0, kept={0: 1024, 1: 2048}, ends=True)
    assert [block.number for block in found.script_blocks] == [2, 1]


class Allocator:
    """Stands for torch's: markers come from one address after another."""

    def __init__(self) -> None:
        self.markers = iter(range(100, 200))
        self._C = SimpleNamespace(
            _cuda_cudaCachingAllocator_raw_alloc=lambda _size, _stream: next(self.markers),
            _cuda_cudaCachingAllocator_raw_delete=lambda _address: None,
            _cuda_getCurrentRawStream=lambda _device: 0,
        )


@pytest.fixture
def journal(events: ModuleType) -> Any:
    made = importlib.import_module("_xmem.repeat.journal").Journal()
    made.begin(Allocator(), 0)
    return made


def test_the_journal_says_what_was_held_when_notes_were_forgotten(
    events: ModuleType, journal: Any
) -> None:
    forward, held = events.events([alloc(1), alloc(2)], {}, (), 0)
    back, _ = events.events([free(1), free(2)], held, (), forward.blocks, ends=True)
    first, second = journal.number(), journal.number()
    journal.note(first, forward)
    journal.forget(at_rest=True)
    at_first = journal.at_first()
    assert (journal.allocated, len(at_first)) == (2048, 2)
    journal.note(second, forward)
    journal.note(first, back)
    assert journal.at_first() == at_first
    assert (journal.allocated, journal.holds(first), journal.holds(second)) == (
        2048,
        (),
        forward.remaining,
    )


def test_a_marker_is_known_by_its_address_and_size_alone(events: ModuleType, journal: Any) -> None:
    forward, _ = events.events([alloc(1)], {}, (), 0)
    journal.note(journal.number(), forward)
    mark = importlib.import_module("_xmem.repeat.journal").MARK
    assert journal.next(100, mark + 1) is None
    assert journal.next(101, mark) is None
    entries, sites = journal.next(100, mark).noted()
    assert ([entry[0] for entry in entries], sites) == (["alloc"], [7])
    assert journal.next(100, mark) is None


def test_what_the_script_gets_stands_where_the_call_allocated_it(
    events: ModuleType, journal: Any
) -> None:
    """And at the end of the call where that is not known yet: the script's own follows then, where
    torch says."""
    given, _ = events.events([alloc(1), alloc(2), free(1)], {}, (2,), 0)
    got = journal.note(1, given)
    mark = importlib.import_module("_xmem.repeat.journal").MARK
    skipped = journal.next(100, mark)
    entries, _ = skipped.noted()
    assert [entry[0] for entry in entries[-2:]] == ["free_requested", "free_completed"]
    assert entries[-1][1] == entries[1][1]
    got[1] = 4096
    entries, _ = skipped.noted()
    assert [(entry[0], entry[1] == 4096) for entry in entries] == [
        ("alloc", False), ("alloc", True), ("free_requested", False), ("free_completed", False),
    ]  # fmt: skip


def test_a_run_that_was_cut_without_whole_epochs_is_never_certain(events: ModuleType) -> None:
    recorder = SimpleNamespace(peak=lambda: 0)
    course = importlib.import_module("_xmem.course.course").Course(recorder, {})
    for number in range(9000):
        course.stepped(0, 0, met=number > 2, begins=not number)
    assert not course.enough(0.1)
    assert course.enough(0.9)
    noted: list[tuple[object, ...]] = []
    for ended in (False, True):
        course.script_ended = ended
        course.doubt(lambda *doubt, **_: noted.append(doubt))
    assert [code for code, _ in noted] == ["not-reached", "not-reached"]
    assert "9,000 steps seen, nothing new since step 3" in str(noted[0][1])


def test_plain_values_are_told_by_what_they_are_and_nothing_else_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    surroundings = importlib.import_module("_xmem.repeat.surroundings")
    known = surroundings.PlainValues()

    def number(*values: object, keys: tuple[object, ...] = ()) -> int:
        found: tuple[int, list[int]] = known.contents(1, keys, values)
        return found[0]

    first = number(1, "a", 0.5)
    assert number(1, str(b"a", "ascii"), 1 / 2) == first
    assert (
        len(
            {
                first,
                number(True, "a", 0.5),
                number(1.0, "a", 0.5),
                number(1, "a"),
                number("a", 1, 0.5),
            }
        )
        == 5
    )
    assert number(1, "a", 0.5) == first
    assert number(1, keys=("x",)) != number(1, keys=("y",))
    other = SimpleNamespace()
    assert known.contents(2, (), (1, other, 2)) == known.contents(3, (), (1, SimpleNamespace(), 2))
    assert known.contents(2, (), (1, other, 2))[1] == [1]
    before = sys.getrefcount(other)
    known.contents(4, (), (other,))
    assert sys.getrefcount(other) == before


def test_plain_values_that_come_and_go_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    surroundings = importlib.import_module("_xmem.repeat.surroundings")
    known = surroundings.PlainValues()
    numbers = {
        known.contents(each, (), (each,))[0] for each in range(3 * surroundings.MOST_REMEMBERED)
    }
    assert len(numbers) == 3 * surroundings.MOST_REMEMBERED
    assert len(known._contents) <= surroundings.MOST_REMEMBERED


def test_steps_are_made_to_compare_ever_less_often_and_early_in_each_loop(
    events: ModuleType,
) -> None:
    assert events
    checks = importlib.import_module("_xmem.repeat.checks").Checks()
    made = []
    for interval in range(100_000):
        checks.come_to(interval, loops=1 + interval // 50_000)
        checks.come_to(interval, loops=1 + interval // 50_000)
        made += [interval] if checks.is_checking else []
    assert made[:4] == [9, 26, 43, 60]
    assert 50_000 in made
    assert len(made) < 60
