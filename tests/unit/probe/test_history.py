"""What of torch's notes is left out stands in the trace as what it changed."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import xmem_slurm


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the probe's module, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return importlib.import_module("_xmem.record.history")


def test_what_waited_for_a_stream_and_is_in_use_was_freed_and_allocated_in_between(
    history: ModuleType,
) -> None:
    live, waiting = (64, 0, False), (64, 0, True)
    before = {0: waiting, 512: waiting, 1024: live, 1536: live}
    after = {0: live, 512: waiting, 1024: waiting, 1536: live}
    assert history.difference(before, after) == [
        ("free_completed", 0, 64, 0),
        ("alloc", 0, 64, 0),
        ("free_requested", 1024, 64, 0),
    ]


def test_what_waited_and_has_another_address_is_freed_once(history: ModuleType) -> None:
    before = {0: (64, 0, True), 512: (32, 0, False)}
    after = {512: (64, 0, True), 1024: (32, 0, True)}
    assert history.difference(before, after) == [
        ("free_requested", 512, 32, 0),
        ("free_completed", 512, 32, 0),
        ("moved_from", 0, 64, 0),
        ("moved_to", 512, 64, 0),
        ("alloc", 1024, 32, 0),
        ("free_requested", 1024, 32, 0),
    ]


def test_a_sum_is_allocated_where_that_was_which_it_is_added_to(history: ModuleType) -> None:
    """As a skipped backward pass has it: who frees what lies there later frees the sum."""
    moved = [("moved_from", 99, 64, 0), ("moved_to", 16, 64, 0)]
    entries = [("alloc", 99, 64, 0), ("free_requested", 16, 64, 0), ("free_completed", 16, 64, 0)]
    assert history._after({16: (64, 0, False)}, entries + moved) == {16: (64, 0, False)}
    freed = [("free_requested", 16, 64, 0), ("free_completed", 16, 64, 0)]
    assert history._after({16: (64, 0, False)}, entries + moved + freed) == {}


class NoSites:
    def of(self, notes: list[dict[str, object]]) -> list[int]:
        return [0 for note in notes if note["action"] == "alloc"]

    def forget(self) -> None: ...


def note(action: str, address: int) -> dict[str, object]:
    return {"action": action, "addr": address, "size": 64, "stream": 0}


def taken(address: int) -> list[dict[str, object]]:
    return [note("alloc", address)]


def freed(address: int) -> list[dict[str, object]]:
    return [note("free_requested", address), note("free_completed", address)]


def test_what_is_allocated_while_a_snapshot_is_taken_is_noted_once(history: ModuleType) -> None:
    """Torch copies its notes before its segments: these may be of later, where another thread goes
    on meanwhile."""
    kept = history.History(
        NoSites(), True, importlib.import_module("_xmem.repeat.journal").Journal()
    )
    notes = [*taken(0), *taken(512), *freed(0), *taken(1024)]
    later = [*taken(0), *freed(1024), *freed(512), *taken(512), *taken(2048)]
    segments = [(512, 1024), (0, 512), (0, 512, 2048)]
    snapshots = [(notes, segments[0]), (notes, segments[1]), (notes + later, segments[2])]
    ends = iter(snapshots)

    def snapshot() -> dict[str, object]:
        told, alive = next(ends)
        blocks = [
            {"address": at, "requested_size": 64, "state": "active_allocated"} for at in alive
        ]
        segment = {"device": 0, "stream": 0, "address": 0, "total_size": 4096, "blocks": blocks}
        settings = {"PYTORCH_CUDA_ALLOC_CONF": ""}
        return {"device_traces": [told], "segments": [segment], "allocator_settings": settings}

    kept._snapshot, kept._clear = snapshot, lambda: None
    for told, _ in snapshots:
        kept.take([sum(each["action"] == "alloc" for each in told)], {0: {}})
    columns = kept.columns(0)
    assert list(zip(columns["action"], columns["address"], strict=True)) == [
        (each["action"], each["addr"]) for each in notes + later
    ]


def test_intervals_in_which_more_was_reserved_stay_when_a_trace_is_shortened(
    history: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST", 6)
    monkeypatch.setattr(history, "RESERVING", 4)
    monkeypatch.setattr(history, "SLICE", 0)
    kept = history.History(
        NoSites(), True, importlib.import_module("_xmem.repeat.journal").Journal()
    )
    notes: list[dict[str, object]] = []

    def snapshot() -> dict[str, object]:
        settings = {"PYTORCH_CUDA_ALLOC_CONF": ""}
        return {"device_traces": [notes], "segments": [], "allocator_settings": settings}

    kept._snapshot, kept._clear = snapshot, lambda: None
    reserved = (1, 2, 2, 3, 4, 4, 5, 5)
    for interval, peak in enumerate(reserved):
        notes, served = [*taken(interval), *freed(interval)], interval + 1
        totals = {0: (served, 64 * served, 64 * served, 64 * served, 0)}
        kept.boundary([served], totals, {0: {"reserved_bytes": peak}}, 0)
    columns = kept.columns(0)
    # the first, the last in which it rose, those before as far as there is room; the newest
    assert [
        address
        for action, address in zip(columns["action"], columns["address"], strict=True)
        if action == "alloc"
    ] == [0, 3, 4, 6, 7]


def steps_seen(
    history: ModuleType,
    *,
    looks: bool = False,
    large: int | None = None,
    emptied: int | None = None,
) -> list[tuple[str, int]]:
    """Return the actions and addresses that are kept of steps, each of which allocates two blocks
    and frees them, but the first and the seventh, whose blocks stay.

    `looks`: whether the notes are looked at after each allocation; `large`: which step allocates
    two more, with a look after each; `emptied`: after which the cache is emptied."""
    kept = history.History(
        NoSites(), True, importlib.import_module("_xmem.repeat.journal").Journal()
    )
    notes: list[dict[str, object]] = []
    alive: list[int] = []

    def snapshot() -> dict[str, object]:
        blocks = [
            {"address": at, "requested_size": 64, "state": "active_allocated"} for at in alive
        ]
        segment = {"device": 0, "stream": 0, "address": 0, "total_size": 4096, "blocks": blocks}
        settings = {"PYTORCH_CUDA_ALLOC_CONF": ""}
        return {"device_traces": [notes], "segments": [segment], "allocator_settings": settings}

    kept._snapshot, kept._clear = snapshot, notes.clear
    served, peak, segments = 0, 0, 0
    for step in range(10):
        lasts = step in (0, 6)
        addresses = (64 * step, 64 * step + 32) if lasts else (2048, 2560)
        if step == large:
            addresses += (3072, 3584)
        for address in addresses:
            notes += taken(address)
            alive.append(address)
            served, peak = served + 1, max(peak, 64 * len(alive))
            if looks or step == large:
                kept.mark("backward", [served], 0.0)
                kept.take([served], {0: {"allocated_bytes": peak}})
        for address in () if lasts else addresses:
            notes += freed(address)
            alive.remove(address)
        if step == emptied:
            notes.append(note("segment_free", 4096))
            segments += 1
        totals = {0: (served, 64 * served, 64 * served, 64 * (served - len(alive)), segments)}
        kept.boundary([served], totals, {0: {"allocated_bytes": peak}}, 64 * len(alive))
    columns = kept.columns(0)
    assert len(kept.sites(0)) == columns["action"].count("alloc")
    return list(zip(columns["action"], columns["address"], strict=True))


def test_when_the_trace_is_written_does_not_show_in_it(
    history: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread writes it, in the midst of whatever step."""
    monkeypatch.setattr(history, "QUIET", 2)
    never, often = (steps_seen(history, looks=looks) for looks in (False, True))
    assert often == never
    assert "left_out" in dict(never)


def test_an_interval_that_was_cut_stays_when_the_next_is_left_out(
    history: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more allocations than torch's notes may hold, and the peak."""
    monkeypatch.setattr(history, "QUIET", 2)
    monkeypatch.setattr(history, "SLICE", 2)
    assert ("alloc", 3584) in steps_seen(history, large=7)


def test_a_step_that_empties_the_cache_is_kept(
    history: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those after it find another cache, which no count of what was asked for tells."""
    monkeypatch.setattr(history, "QUIET", 2)
    assert ("segment_free", 4096) not in steps_seen(history)
    assert ("segment_free", 4096) in steps_seen(history, emptied=8)


def test_a_free_counts_where_it_is_asked_for_however_long_it_waits(history: ModuleType) -> None:
    """As torch counts it; another one before these notes is completed among them."""
    notes = [
        {"action": action, "addr": address, "size": 64, "stream": 0}
        for action, address in (
            ("free_completed", 9), ("alloc", 1), ("free_requested", 1), ("alloc", 2), ("free_requested", 2),
            ("free_completed", 2), ("free_completed", 1), ("alloc", 1), ("free_requested", 1),
        )
    ]  # fmt: skip
    assert history._served_notes(notes, [7, 8, 9]) == [
        ("alloc", 1, 64, 0, 7),
        ("free_requested", 1, 64, 0, 2),
        ("alloc", 2, 64, 0, 8),
        ("free_requested", 2, 64, 0, 0),
        ("alloc", 1, 64, 0, 9),
        ("free_requested", 1, 64, 0, len(notes)),
    ]
