"""What torch does for the sake of its compiler waits for who imports that."""

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import xmem_slurm

asked: list[str] = []


def disable(fn: Any, recursive: bool = True) -> Any:
    """As torch/_compile.py has it, with a name in a list for the import."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        asked.append(f"{fn.__name__}, {recursive}")
        return fn(*args, **kwargs)

    return inner


def in_another_way(fn: Any) -> Any:
    """As no torch has it."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        asked.append(fn.__name__)
        return fn(*args, **kwargs)

    return inner


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what waits, in a process where nothing has been imported."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    asked.clear()
    return importlib.import_module("_xmem.dynamo").Dynamo()


def add(one: int, other: int = 2) -> int:
    return one + other


def test_what_is_not_to_be_compiled_is_just_called_until_there_is_a_compiler(dynamo: Any) -> None:
    mark = dynamo.disabled(disable, None)
    marked = mark(add)
    assert (marked(1), marked(1, other=4), asked) == (3, 5, [])
    dynamo._came(ModuleType("torch._dynamo"))
    assert (marked(1), mark(add, recursive=False)(2), asked) == (3, 4, ["add, True", "add, False"])


@pytest.mark.parametrize(
    "way", [in_another_way, lambda fn: functools.partial(disable, fn)], ids=["other", "partial"]
)
def test_what_has_another_form_stays_as_it_is(dynamo: Any, way: Callable[[Any], Any]) -> None:
    marked = dynamo.disabled(way, None)(add)
    if isinstance(marked, functools.partial):
        marked = marked()
    assert marked(1) == 3
    assert len(asked) == 1
