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


def test_what_waited_for_a_stream_and_is_in_use_was_freed_and_allocated_in_between(history: ModuleType) -> None:
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
