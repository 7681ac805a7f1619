"""Films have few frames, unless those use the GPU; histograms are tested where there is numpy
(test_fast_forward)."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import xmem_slurm


@pytest.mark.parametrize(("each", "drawn"), [(0, 4), (1, 9)], ids=["on the host", "on the GPU"])
def test_a_film_has_few_frames(each: int, drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    plots = importlib.import_module("_xmem.plots")
    served = {"allocation.all.allocated": 7}
    cuda = SimpleNamespace(memory_stats=lambda: dict(served))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    frames = plots.shortened(lambda animation: iter(range(animation)), None)
    seen = []
    for frame in frames(9):
        seen.append(frame)
        served["allocation.all.allocated"] += each
    assert seen == [*range(drawn)]
    assert [*frames(2)] == [0, 1]
