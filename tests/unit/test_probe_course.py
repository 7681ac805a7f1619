"""Of what size are the batches that training draws? Of all its loaders, and of no others."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

import xmem_slurm


class Iterating:
    """What torch's DataLoader goes through itself by."""

    _collate_fn, _dataset, _num_yielded = staticmethod(list), (), 0

    def __init__(self, **sampler: object) -> None:
        self._index_sampler = SimpleNamespace(**sampler)


SPLIT = {"batch_size": 32, "split_batches": True, "num_processes": 4}


@pytest.mark.parametrize(
    ("samplers", "expected"),
    [
        pytest.param([{"batch_size": 8}], 8, id="one"),
        pytest.param([SPLIT], 8, id="each process draws a part"),
        pytest.param([{"batch_size": 8}, {"batch_size": 8}], 8, id="two of one size"),
        pytest.param([{"batch_size": 8}, {"batch_size": 64}], 0, id="two of different sizes"),
        pytest.param([{}], 0, id="a sampler of its own"),
        pytest.param([], 0, id="none"),
    ],
)
def test_the_batch_is_that_of_the_loaders_that_training_draws_from(
    samplers: list[dict[str, object]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between steps it evaluates, with batches of 512."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    recorder = SimpleNamespace(allocated=lambda: 0, fetching=lambda: None)
    course = importlib.import_module("_xmem.course.course").Course(recorder, {})
    give = course.given(lambda _: [], None)
    training = [Iterating(**sampler) for sampler in samplers]

    for _ in range(3):
        for loader in training:
            give(loader)
            loader._num_yielded += 1
        course.stepped(0, 0, met=True, begins=False)
        evaluating = Iterating(batch_size=512)
        for evaluating._num_yielded in range(2):
            give(evaluating)
    assert course.batch_size() == expected
