"""How much host memory a process holds, where two threads look at once."""

import importlib
import mmap
from pathlib import Path

import pytest

import xmem_slurm

PROBE = Path(xmem_slurm.__file__).parent / "probe"


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROBE)


def test_what_another_thread_has_seen_go_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that writes the trace looks as well as the script's, and ctypes lets it run while
    the kernel is asked."""
    memory = importlib.import_module("_xmem.record.host").HostMemory()
    memory.leaves_out(1 << 46, mmap.PAGESIZE)
    asked = list[int]()

    def unmapped(*_: object) -> int:
        asked.append(1)
        if len(asked) == 1:
            memory._mapped = 0
            memory.look()
        return -1

    monkeypatch.setattr(memory, "_mincore", unmapped)
    memory.look()
    assert len(asked) == 2, "both have asked of the same pages"
    assert memory.most_bytes > 0
