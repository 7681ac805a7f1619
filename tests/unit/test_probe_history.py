"""What of torch's notes is left out stands in the trace as what it changed."""

import importlib
from pathlib import Path

import pytest

import xmem_slurm


def test_what_waited_for_a_stream_and_is_in_use_was_freed_and_allocated_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    history = importlib.import_module("_xmem.record.history")
    live, waiting = (64, 0, False), (64, 0, True)
    before = {0: waiting, 512: waiting, 1024: live, 1536: live}
    after = {0: live, 512: waiting, 1024: waiting, 1536: live}
    assert history.difference(before, after) == [
        ("free_completed", 0, 64, 0),
        ("alloc", 0, 64, 0),
        ("free_requested", 1024, 64, 0),
    ]
