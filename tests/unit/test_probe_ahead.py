"""What the loops of a script can still do, told from its source and its variables at a step."""

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import xmem_slurm

PROBE = Path(xmem_slurm.__file__).parent / "probe"


WIDTHS = """
import itertools
def run(w):
  for i in range(5): step()
for w, r in itertools.product([8, 64], [1, 2]):
  run(w)
"""
COUNTER = """
class T:
  def run(self):
    self.n = 0
    while self.n < 90:
      step()
      self.n += 1
      if self.n % 20 == 0: evaluate()
T().run()
"""
LAYERS = """
class M:
  named_parameters = 1
  def __getitem__(self, i): pass
layers = M()
for e in range(3):
  if e: act(layers[-e])
  for b in [1]: step()
"""


METHOD = """
class T:
  n = 0
  def train(self):
    step()
    self.n += 1
    self.maybe()
  def maybe(self):
    if self.n % 20 == 0: evaluate()
t = T()
for i in range(90): t.train()
"""
SCHEDULE = """
class Schedule:
  small, large = 8, 64
  def size(self, s):
    if s < 20: return self.small
    return self.large
schedule = Schedule()
for i in range(99):
  act(schedule.size(i))
  step()
"""
GENERATOR = """
def batches():
  for i in range(90):
    yield 8 if i < 40 else 64
for size in batches(): step()
"""


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe's modules be found, which only the job's Python has on its path."""
    monkeypatch.syspath_prepend(PROBE)


def looked(tmp_path: Path, script: str, at: int, *, alone: bool = True, evaluated: bool = False) -> Any:
    """Run a script that calls `step()`, and look ahead at call number `at`; its other functions do nothing."""
    ahead, found, calls = importlib.import_module("_xmem.course.ahead"), [], 0

    def step() -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            found.append(ahead.look(sys._getframe(1), alone, evaluated, False, calls))
            raise StopIteration

    def nothing(*_: object) -> None:
        pass

    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(script))
    names = dict.fromkeys(("evaluate", "grow", "final", "act", "unfreeze"), nothing)
    with pytest.raises(StopIteration):
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", "step": step, **names})
    return found[0]


def unseen(outlook: Any) -> list[tuple[str, int | None]]:
    return [(each.what.strip("`"), each.iterations) for each in outlook.unseen]


@pytest.mark.parametrize(
    ("script", "at", "expected"),
    {
        "a loop that does one thing": ("for i in range(100): step()", 5, []),
        "every so often, not yet": (
            "for i in range(9000):\n  step()\n  if i % 200 == 199: evaluate()",
            5,
            [("evaluate()", 196)],
        ),
        "every so often, seen": ("for i in range(900):\n  step()\n  if i % 200 == 199: evaluate()", 300, []),
        "at the first, which was before any step": (
            "for i in range(900):\n  if i % 200 == 0: evaluate()\n  step()",
            5,
            [("evaluate()", 196)],
        ),
        "at the second, too": ("for i in range(900):\n  if i % 200 == 0: evaluate()\n  step()", 205, []),
        "this time, but later in the loop": (
            "for i in range(9):\n  step()\n  if i == 4: evaluate()",
            5,
            [("evaluate()", 1)],
        ),
        "never within the loop": ("for i in range(50):\n  step()\n  if i == 200: evaluate()", 5, []),
        "by a counter": (
            "n = 0\nwhile True:\n  step()\n  n += 1\n  if n % 50 == 0: evaluate()",
            7,
            [("evaluate()", 44)],
        ),
        "by a counter, seen": ("n = 0\nwhile True:\n  step()\n  n += 1\n  if n % 50 == 0: evaluate()", 60, []),
        "after a break": ("n = 0\nwhile True:\n  step()\n  n += 1\n  if n > 50: break\nfinal()", 7, [("final()", 45)]),
        "by options": (
            "class o: every = 20\nfor i in range(99):\n  step()\n  if i and i % o.every == 0: evaluate()",
            5,
            [("evaluate()", 17)],
        ),
        "what follows the loop": ("for i in range(100): step()\nprint('end')\nfinal()", 5, [("final()", 95)]),
        "a log follows the loop": ("for i in range(100): step()\nprint('end')", 5, []),
        "a checkpoint of one process": ("for i in range(100): step()\ntorch.save(net.state_dict(), 'last.pt')", 5, []),
        "a checkpoint that is read": (
            "for i in range(9): step()\nbest = torch.load('b.pt')",
            5,
            [("best = torch.load('b.pt')", 4)],
        ),
        "a parameter group": (
            "for i in range(9):\n  if i == 7: opt.add_param_group({})\n  step()",
            5,
            [("opt.add_param_group({})", 3)],
        ),
        "after the first epoch": (
            "for e in range(3):\n  for b in [1] * 9: step()\n  evaluate()",
            5,
            [("evaluate()", 4)],
        ),
        "after an epoch, seen": ("for e in range(3):\n  for b in [1] * 9: step()\n  evaluate()", 12, []),
        "an epoch to come": (
            "for e in range(30):\n  if e == 20: unfreeze()\n  for b in [1] * 9: step()",
            12,
            [("unfreeze()", 19)],
        ),
        "a size that grows": (
            "for e in range(30):\n  size = 8 * 2 ** (e // 10)\n  for b in [1]: step()",
            12,
            [("8 * 2 ** (e // 10)` of 32", 9)],
        ),
        "a size that grew": ("for e in range(30):\n  size = 8 * 2 ** (e // 10)\n  for b in [1]: step()", 25, []),
        "a size that shrinks": ("for e in range(30):\n  size = 80 - e\n  for b in [1]: step()", 12, []),
        "a number of the step": ("for e in range(30):\n  for i in range(5):\n    n = e * 5 + i\n    step()", 12, []),
        "a size by a function": (
            "def size(s): return min(64, 8 + s // 60 * 8)\nfor i in range(999): act(i, size(i)), step()",
            9,
            [("size(i)` of 16", 53)],
        ),
        "a size in a call": ("for e in range(9):\n  act(8 << e)\n  for b in [1]: step()", 1, [("8 << e` of 16", 1)]),
        "sizes from a list": (
            "sizes = [1, 1, 5]\nfor e in range(3):\n  act(sizes[e])\n  for b in [1]: step()",
            2,
            [("sizes[e]` of 5", 1)],
        ),
        "a switch by the step": (
            "class net: pass\nfor i in range(900):\n  net.on = i >= 300\n  step()",
            9,
            [("i >= 300` of True", 292)],
        ),
        "a switch that goes off": (
            "class net: pass\nfor i in range(900):\n  net.on = i < 300\n  step()",
            9,
            [("i < 300` of False", 292)],
        ),
        "places in data": (
            "data = list(range(99))\nfor i in range(30):\n  batch = data[i * 3:i * 3 + 3]\n  step()",
            9,
            [],
        ),
        "what is printed": ("for i in range(30):\n  print(2 ** i, f'{i * i}')\n  step()", 9, []),
        "widths from lists": (
            WIDTHS,
            7,
            [("w` of 64", 2)],
        ),
        "lengths in a list": ("for n in [8] * 40 + [64]:\n  act(n)\n  step()", 7, [("n` of 64", 34)]),
        "a counter of an object": (
            COUNTER,
            7,
            [("evaluate()", 14)],
        ),
        "another layer": (
            LAYERS,
            2,
            [("-e` of -2", 1)],
        ),
        "a size that is doubled": (
            "n = 8\nfor e in range(9):\n  if e in (2, 6): n *= 2\n  for b in [1]: step()",
            4,
            [("n *= 2", 3)],
        ),
        "a switch": (
            "on = None\nfor e in range(9):\n  if e == 6: on = True\n  for b in [1]: step()",
            4,
            [("on = True", 3)],
        ),
        "a rate that falls": ("n = 0.1\nfor e in range(9):\n  if e == 6: n *= 0.1\n  for b in [1]: step()", 4, []),
        "a count of updates": ("n = 0\nfor i in range(99):\n  step()\n  if i % 4 == 3: n += 1", 9, []),
        "in a function": ("def epoch():\n  for i in range(9): step()\n  final()\nepoch()", 3, [("final()", 6)]),
        "after a function": ("def epoch():\n  for i in range(9): step()\nepoch()\nfinal()", 3, [("final()", None)]),
        "by a loss, an evaluation": (
            "for i in range(9):\n  step()\n  if act(i): evaluate()",
            5,
            [("evaluate()", None)],
        ),
        "what follows a `continue`": (
            "for i in range(99):\n  step()\n  if i % 20 < 19: continue\n  evaluate()",
            5,
            [("evaluate()", 16)],
        ),
        "in what is called with the step": (
            "def maybe(s):\n  if s % 20 != 19: return\n  evaluate()\nfor i in range(99):\n  step()\n  maybe(i)",
            5,
            [("evaluate()", 16)],
        ),
        "a method that counts, and one that looks": (METHOD, 5, [("evaluate()", 16)]),
        "a size of what is called with the epoch": (
            "def set(e): act(8 << e // 3)\nfor e in range(9):\n  set(e)\n  for b in [1]: step()",
            2,
            [("8 << e // 3` of 16", 2)],
        ),
        "a log of the script's own that evaluates": (
            "def log_it(): evaluate()\nfor i in range(99):\n  step()\n  if i % 20 == 19: log_it()",
            5,
            [("log_it()", 16)],
        ),
        "a log of the script's own": (
            "def log_it(): print('step')\nfor i in range(99):\n  step()\n  if i % 20 == 19: log_it()",
            5,
            [],
        ),
        "how many were collected": (
            "kept = []\nfor i in range(99):\n  kept.append(i)\n  if len(kept) > 50: grow()\n  step()",
            5,
            [("grow()", 46)],
        ),
        "sizes from a dict": (
            "sizes = {20: 64}\nfor i in range(99):\n  act(sizes.get(i, 8))\n  step()",
            5,
            [("sizes.get(i, 8)` of 64", 16)],
        ),
        "a size by a lambda": (
            "size = lambda s: 8 if s < 20 else 64\nfor i in range(99):\n  act(i, size(i)), step()",
            5,
            [("size(i)` of 64", 17)],
        ),
        "a size by a method": (SCHEDULE, 5, [("schedule.size(i)` of 64", 16)]),
        "how often": (
            "for i in range(99):\n  for _ in range(1 + i // 20): act(i)\n  step()",
            5,
            [("range(1 + i // 20)` of range(0, 2)", 16)],
        ),
        "what is kept on the GPU": (
            "class x: is_cuda = True\nkept = []\nfor i in range(99):\n  if i > 20: kept.append(x)\n  step()",
            5,
            [("kept.append(x)", 17)],
        ),
        "by a loss, something else": ("for i in range(9):\n  step()\n  if act(i): grow()", 5, []),
    }.values(),
)
def test_what_is_still_to_come_is_named(tmp_path: Path, script: str, at: int, expected: list[tuple[str, int]]) -> None:
    outlook = looked(tmp_path, script, at)
    assert (outlook.certain, unseen(outlook)) == (True, expected)


def test_an_evaluation_by_a_loss_is_no_matter_once_there_was_one(tmp_path: Path) -> None:
    script = "for i in range(9):\n  step()\n  if act(i): evaluate()"
    assert unseen(looked(tmp_path, script, 5, evaluated=True)) == []


def test_more_conditions_than_can_be_computed_leave_nothing_certain(tmp_path: Path) -> None:
    branches = "".join(f"  if i % 90_000 == {number}: evaluate()\n" for number in range(9))
    assert not looked(tmp_path, f"for i in range(99_000):\n  step()\n{branches}", 12).certain


def test_loops_tell_how_far_they_are(tmp_path: Path) -> None:
    script = "data = [0] * 40\nfor e in range(3):\n  for i, b in enumerate(data):\n    step()"
    assert [(done, of) for _, done, of in looked(tmp_path, script, 50).loops] == [(10, 40), (2, 3)]


def test_a_number_that_cannot_be_computed_for_later_iterations_is_not_certain(tmp_path: Path) -> None:
    script = "import operator\nfor i in range(90):\n  size = operator.floordiv(i, 20)\n  step()"
    assert not looked(tmp_path, script, 5).certain


def test_a_generator_of_the_scripts_with_conditions_is_not_certain(tmp_path: Path) -> None:
    assert not looked(tmp_path, GENERATOR, 5).certain


def test_a_script_without_source_is_not_certain(tmp_path: Path) -> None:
    ahead, found = importlib.import_module("_xmem.course.ahead"), []
    exec(
        compile("for i in range(9): step()", str(tmp_path / "gone.py"), "exec"),
        {"__name__": "__main__", "step": lambda: found.append(ahead.look(sys._getframe(1), True, False, False, 1))},
    )
    assert not found[0].certain


def test_asking_changes_nothing(tmp_path: Path) -> None:
    """Only what is known to have no effect is computed: no calls, no assignments, no attributes with code of ours."""
    script = "called = []\nfor i in range(9):\n  step()\n  if called.append(1) or i == 3: evaluate()\n"
    assert unseen(looked(tmp_path, script, 2)) == [("evaluate()", 3)]
