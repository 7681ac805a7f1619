"""What a script still does beside its loops' own conditions: callbacks, generators, properties, what follows them."""

from pathlib import Path

import pytest

from tests.unit.test_probe_ahead import looked, probe, unseen

__all__ = ["probe"]

MATCH = """
for e in range(9):
  match e:
    case 0 | 1: act()
    case 4: grow()
    case _: print()
  for b in [1]: step()
"""
CALLBACKS = """
class Each:
  def __init__(self, at): self.at = at
  def on_step(self, i):
    if i == self.at: grow()
each = [Each(2), Each(20)]
for i in range(99):
  step()
  for callback in each: callback.on_step(i)
"""
LENGTHS = """
def batches():
  for length in (8, 64):
    for _ in range(9): yield act(length)
for i, x in enumerate(batches()): step()
"""
CURRICULUM = """
class Curriculum:
  at = 0
  @property
  def length(self): return self.at // 20
  def step(self): self.at += 1
curriculum = Curriculum()
for _ in range(99):
  act(curriculum.length)
  step()
  curriculum.step()
"""
EPOCHS = """
class Data:
  epoch = 0
  def set_epoch(self, epoch): self.epoch = epoch
  def __getitem__(self, i): return act(64) if self.epoch >= 3 else act(8)
data = Data()
for e in range(9):
  data.set_epoch(e)
  for b in [1]: step()
"""


@pytest.mark.parametrize(
    ("script", "at", "expected"),
    {
        "from an epoch on, in the loop over batches": (
            "for e in range(9):\n  for b in [1]:\n    if e > 3: grow()\n    step()",
            2,
            [("grow()", 3)],
        ),
        "from an epoch on, and by chance": (
            "for i in range(99):\n  if i > 30 and act(): grow()\n  step()",
            5,
            [("grow()", 27)],
        ),
        "a size made larger after each epoch": (
            "size = 8\nfor e in range(3):\n  for b in [1]: step()\n  size *= 2",
            2,
            [("size *= 2", 1)],
        ),
        "by match": (MATCH, 2, [("grow()", 3)]),
        "by a callback": (CALLBACKS, 5, [("grow()", 17)]),
        "by a callback in a comprehension": (
            CALLBACKS.replace("for callback in each: callback.on_step(i)", "[one.on_step(i) for one in each]"),
            5,
            [("grow()", 17)],
        ),
        "by a count without an end": (
            "import itertools\nfor i in itertools.count(1):\n  if i % 50 == 0: evaluate()\n  step()",
            7,
            [("evaluate()", 43)],
        ),
        "by a counter in a dictionary": (
            "at = {'step': 0}\nwhile at['step'] < 90:\n  step()\n  at['step'] += 1\n  if at['step'] == 40: evaluate()",
            5,
            [("evaluate()", 36)],
        ),
        "what follows where there was no break": (
            "for i in range(9): step()\nelse: final()",
            5,
            [("final()", 4)],
        ),
        "what a context manager does at its end": (
            "class C:\n  __enter__ = act\n  def __exit__(self, *_): final()\nwith C():\n  for i in range(9): step()",
            5,
            [("with C():", 4)],
        ),
        "arithmetic on what is large": (
            "class z: is_cuda, numel = True, lambda: 4096\nfor i in range(9): step()\nz @ z",
            5,
            [("z @ z", 4)],
        ),
        "what a generator of the script's gives": (LENGTHS, 5, [("length` of 64", 1)]),
        "a property, by what a method counts": (CURRICULUM, 5, [("self.at // 20` of 1", 17)]),
        "a data set that is told the epoch": (EPOCHS, 2, [("self.epoch >= 3` of True", 2)]),
    }.values(),
)
def test_what_is_still_to_come_is_named(tmp_path: Path, script: str, at: int, expected: list[tuple[str, int]]) -> None:
    outlook = looked(tmp_path, script, at)
    assert (outlook.certain, unseen(outlook)) == (True, expected)
