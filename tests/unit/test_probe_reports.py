"""What is made for people to look at is made of little; test_fast_forward tests histograms, where there is numpy."""

import importlib
from pathlib import Path

import pytest

import xmem_slurm


def test_a_film_has_few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    reports = importlib.import_module("_xmem.reports")
    frames = reports.shortened(lambda animation: iter(range(animation)), None)
    assert [*frames(400)] == [0, 1, 2, 3]
    assert [*frames(2)] == [0, 1]
