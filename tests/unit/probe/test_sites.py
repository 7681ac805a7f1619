"""An allocation whose thread has not yet said where it is."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import xmem_slurm


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the probe's module, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    return importlib.import_module("_xmem.record.sites")


def test_who_reads_the_notes_waits_for_the_hook_of_the_last(
    sites: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch notes an allocation, and then calls its hook, for which a thread needs the GIL."""
    found = sites.Sites(importlib.import_module("_xmem.repeat.journal").Journal())
    monkeypatch.setattr(found, "_call", found.of.__code__)
    monkeypatch.setattr(found, "_sequence", lambda: 0)
    noted = [{"action": "alloc", "addr": 512}, {"action": "alloc", "addr": 1024}]

    def hook(address: int) -> None:
        found._allocated(address)

    hook(512)
    monkeypatch.setattr(sites.time, "sleep", lambda _: hook(1024))
    lines = [found.found_sites[number].function for number in found.of(noted)]
    assert lines == ["hook", "hook"]
    monkeypatch.setattr(sites.time, "sleep", lambda _: None)
    assert found.of([*noted, {"action": "alloc", "addr": 2048}])[2] == sites.NOWHERE
