"""Of what size are the batches that training draws, and which epochs stand for others?"""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

import xmem_slurm


class Iterating:
    """What torch's DataLoader goes through itself by."""

    _collate_fn, _dataset, _num_yielded, left = staticmethod(list), (), 0, 0

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
    recorder = SimpleNamespace(allocated=lambda: 0, fetching=lambda: None, measures=lambda: None)
    course = importlib.import_module("_xmem.course.course").Course(
        recorder, {"XMEM_CPU_SECONDS": "60"}
    )
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


@pytest.mark.parametrize(
    ("left", "grows"),
    [
        pytest.param([4096], True, id="at each step"),
        pytest.param([1 << 20, 4096 - (1 << 20)], True, id="by turns more and less"),
        pytest.param([1 << 20, -(1 << 20)], False, id="by turns, nothing in the end"),
        pytest.param([0], False, id="nothing"),
    ],
)
def test_what_each_step_leaves_is_told_where_the_script_was_not_ended(
    left: list[int], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    course = importlib.import_module("_xmem.course.course").Course(
        SimpleNamespace(), {"XMEM_CPU_SECONDS": "60"}
    )
    allocated, noted = 8 << 20, []
    for step in range(400):
        allocated += left[step % len(left)]
        course.stepped(allocated, 0, met=True, begins=False)
    monkeypatch.setattr(course, "_doubt", lambda code, *_: noted.append(code))
    course.ending()
    assert noted == ["still-growing"] * grows


EPOCH, THAWED = [("step", True)] * 400, [("step", True)] * 200 + [("step", False)] * 200
AFTER = [("peak", 1500), ("step", False), *EPOCH]
"""The steps of an epoch: whether each was like an earlier one."""


@pytest.mark.parametrize(
    ("whole", "short", "expected"),
    [
        pytest.param([THAWED, EPOCH, EPOCH, EPOCH], [EPOCH], True, id="three alike"),
        pytest.param([THAWED, EPOCH, EPOCH], [EPOCH], False, id="alike for too few steps"),
        pytest.param([EPOCH * 4], [EPOCH], False, id="too few epochs"),
        pytest.param(
            [EPOCH * 2, AFTER, EPOCH * 3], [EPOCH], True, id="something new between two epochs"
        ),
        pytest.param(
            [EPOCH * 2, AFTER], [EPOCH], False, id="too few epochs after something new between two"
        ),
        pytest.param(
            [EPOCH, EPOCH, EPOCH, THAWED], [EPOCH], False, id="something new in the last whole one"
        ),
        pytest.param(
            [EPOCH] * 9, [EPOCH, THAWED], False, id="something new in one that was cut short"
        ),
        pytest.param(
            [EPOCH] * 9, [EPOCH, [("peak", 2001)]], False, id="a higher peak after the last one"
        ),
        pytest.param(
            [EPOCH] * 9, [EPOCH, [("peak", 1000.05)]], True, id="a peak that is slightly higher"
        ),
        pytest.param(
            [EPOCH, [*EPOCH, ("peak", 1001)]] * 4, [EPOCH], True, id="a peak that has risen once"
        ),
        pytest.param(
            [[*EPOCH, ("peak", 1000 + n)] for n in range(9)],
            [],
            False,
            id="a peak that rises each time",
        ),
    ],
)
def test_whole_epochs_stand_for_those_cut_short_if_nothing_is_new(
    whole: list[list[tuple[str, float]]],
    short: list[list[tuple[str, float]]],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    epochs = importlib.import_module("_xmem.course.epochs").Epochs()

    def run(events: list[tuple[str, float]], *, cut: bool) -> None:
        for event, value in events:
            if event == "step":
                epochs.stepped(bool(value), 1000)
            else:
                epochs.reached(value)
        epochs.ended("training", trains=True, cut=cut)

    for each in whole:
        run(each, cut=False)
    epochs.stop()
    for each in short:
        run(each, cut=True)
    assert epochs.trusted is expected
    assert epochs.known_loops().keys() == ({"training"} if expected else set())
    assert (epochs.whole, epochs.cut) == (len(whole), len(short))


def test_where_every_step_was_seen_before_one_epoch_alike_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    epochs = importlib.import_module("_xmem.course.epochs").Epochs(end_seen=True)
    for expected in (False, True):
        for step in range(3):
            epochs.stepped(expected or bool(step), 1000)
        epochs.ended("training", trains=True, cut=False)
        assert epochs.are_alike() is expected


def test_a_loop_that_is_cut_short_and_was_never_seen_whole_takes_the_trust_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the rest of it would do nobody knows, however much it looks like others; one that is
    whole is welcome."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    epochs = importlib.import_module("_xmem.course.epochs").Epochs()
    for _ in range(4):
        for _ in range(400):
            epochs.stepped(True, 1000)
        epochs.ended("training", trains=True, cut=False)
    epochs.stop()
    epochs.ended("a test, whole", trains=False, cut=False)
    epochs.ended("training", trains=True, cut=True)
    assert epochs.stand_to_the_end(1000)
    assert not epochs.stand_to_the_end(1001)
    epochs.ended("a test", trains=False, cut=True)
    assert not epochs.stand_to_the_end(1000)


def test_batches_of_an_evaluation_are_not_those_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes four batches, and after each second one nine are evaluated: a loop that is
    cut gives eight."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    recorder = SimpleNamespace(
        allocated=lambda: 0, fetching=lambda: None, measures=lambda: None, peak=lambda: 0
    )
    course = importlib.import_module("_xmem.course.course").Course(
        recorder, {"XMEM_CPU_SECONDS": "60"}
    )

    def draw(loader: Iterating) -> list[object]:
        if not loader.left:
            raise StopIteration
        loader.left -= 1
        return []

    give = course.given(draw, None)

    def loop(size: int, batches_a_step: int = 0) -> int:
        """Return how many batches are given."""
        loader = Iterating()
        loader.left = size
        while True:
            try:
                give(loader)
            except StopIteration:
                return loader._num_yielded
            loader._num_yielded += 1
            if batches_a_step and not loader._num_yielded % batches_a_step:
                course.stepped(0, 0, met=True, begins=False)
            if batches_a_step and not loader._num_yielded % (2 * batches_a_step):
                loop(9)

    assert loop(40, batches_a_step=4) == 40
    course.enough(0.9)
    assert loop(40, batches_a_step=4) == 8


@pytest.mark.parametrize("epochs", [1, 4])
def test_at_the_end_of_an_epoch_a_run_goes_on_if_epochs_stand_for_the_rest(
    epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate asks for one batch more before each step: at the last step of an epoch its loop
    has ended."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    course = importlib.import_module("_xmem.course.course").Course(
        SimpleNamespace(), {"XMEM_CPU_SECONDS": "60"}
    )
    for _ in range(epochs):
        for _ in range(600):
            course._epochs.stepped(True, 1000)
        course._epochs.ended(("training", 600), trains=True, cut=False)
    course._loader = SimpleNamespace(ended=True)
    assert not course.enough(0.4)
    assert course.enough(0.8) is (epochs == 1)
