"""The loop that applies the probe's table of hooks, on a package made up for it; and what the table
says of itself."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import xmem_slurm

PROBE = Path(xmem_slurm.__file__).parent / "probe"


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the probe's modules be found, and forget what they noted."""
    monkeypatch.syspath_prepend(PROBE)
    with importlib.import_module("_xmem.doubts").kept():
        yield


@pytest.fixture
def patches() -> ModuleType:
    return importlib.import_module("_xmem.patches")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with a function and a class that has a method."""
    made = ModuleType("package")
    vars(made).update(
        load=lambda: "theirs", Store=type("Store", (), {"put": lambda _self: "theirs"})
    )
    monkeypatch.setitem(sys.modules, "package", made)
    return made


def ours(original: Any, _owner: object) -> Any:
    return lambda *args: "ours, then " + original(*args)


def doubted() -> list[tuple[str, str]]:
    return [
        (row["code"], row["detail"]) for row in importlib.import_module("_xmem.doubts").rows([])
    ]


def test_what_is_there_is_replaced(patches: ModuleType, package: Any) -> None:
    table = [
        patches.Patch("package", "load", "part.ours", ""),
        patches.Patch("package:Store", "put", "part.ours", ""),
    ]
    assert patches.apply(table, {"part": SimpleNamespace(ours=ours)}, "2.11.0+cu130") == set()
    assert (package.load(), package.Store().put()) == ("ours, then theirs",) * 2
    assert doubted() == []


@pytest.mark.parametrize(
    ("owner", "name"), [("package", "save"), ("package:Shelf", "put"), ("no_package", "load")]
)
def test_what_is_gone_is_a_doubt(owner: str, name: str, patches: ModuleType, package: Any) -> None:
    table = [
        patches.Patch(owner, name, "part.ours", ""),
        patches.Patch("package", "load", "part.ours", ""),
    ]
    patches.apply(table, {"part": SimpleNamespace(ours=ours)}, "2.11.0")
    assert doubted() == [("hook-missing", f"no {owner.replace(':', '.')}.{name} in this release")]
    assert package.load() == "ours, then theirs"


def test_a_replacement_that_cannot_be_made_is_a_doubt(patches: ModuleType, package: Any) -> None:
    patches.apply(
        [patches.Patch("package", "load", "part.ours", "")],
        {"part": SimpleNamespace(ours=int)},
        "2.11.0",
    )
    assert doubted() == [("hook-missing", "no package.load in this release")]
    assert package.load() == "theirs"


def test_without_what_it_reads_a_part_stays_away(patches: ModuleType, package: Any) -> None:
    table = [
        patches.Patch("package", "load", "part.ours", ""),
        patches.Patch("package", "_core", "part", ""),
    ]
    assert patches.apply(table, {"part": SimpleNamespace(ours=ours)}, "2.11.0") == {"part"}
    assert package.load() == "theirs"
    assert doubted() == [("hook-missing", "no package._core in this release")]


def test_what_is_essential_must_be_there(patches: ModuleType) -> None:
    with pytest.raises(patches.CannotRecordError, match=r"no package\._core"):
        patches.apply(
            [patches.Patch("package", "_core", "part", "", patches.ESSENTIAL)],
            {"part": None},
            "2.11.0",
        )


@pytest.mark.parametrize(
    ("version", "doubts"), [("2.8.0", 0), ("2.9.1+cpu", 1), ("2.10.0a0+git", 1)]
)
def test_no_release_lacks_what_came_later(
    version: str, doubts: int, patches: ModuleType, package: object
) -> None:
    row = patches.Patch("package", "save", "part.ours", "", since="2.9")
    patches.apply([row], {"part": SimpleNamespace(ours=ours)}, version)
    assert len(doubted()) == doubts


def test_a_finder_that_asks_all_others_is_not_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Import hooks of tools for coverage and types do what the probe's does: each asks every
    other."""

    class Delegates:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            others = (finder for finder in sys.meta_path if finder is not self)
            return next(
                (spec for spec in (each.find_spec(name, path, target) for each in others) if spec),
                None,
            )

    finder, seen = importlib.import_module("_xmem.imports")._Finder(str(PROBE), times=None), []
    monkeypatch.setattr(sys, "meta_path", [Delegates(), finder, PathFinder])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "asked_for.py").touch()
    finder.after("asked_for", seen.append)
    asked_for = importlib.import_module("asked_for")
    monkeypatch.delitem(sys.modules, "asked_for")
    assert seen == [asked_for]


def test_rows_of_one_module_wait_for_it_together(
    patches: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = importlib.import_module("_xmem.imports")
    finder = imports._Finder(str(PROBE), times=None)
    monkeypatch.setattr(imports, "_finders", [finder])
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "waited_for.py").write_text(
        "def load(): return 'theirs'\n\n\ndef save(): return 'theirs'\n"
    )
    table = [
        patches.Patch("waited_for", name, "part.ours", "", late=True)
        for name in ("load", "save", "move")
    ]
    patches.apply(table, {"part": SimpleNamespace(ours=ours)}, "2.11.0")
    assert "waited_for" not in sys.modules
    waited_for = importlib.import_module("waited_for")
    monkeypatch.delitem(sys.modules, "waited_for")
    assert (waited_for.load(), waited_for.save()) == ("ours, then theirs",) * 2
    assert doubted() == [("hook-missing", "no waited_for.move in this release")]


@pytest.mark.parametrize("ends", ["", "raise ValueError\n"])
def test_a_module_that_imports_torch_itself_is_waited_for(
    ends: str, patches: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As accelerate does: torch's hooks go in while its module is there, and its names are not."""
    imports = importlib.import_module("_xmem.imports")
    monkeypatch.setattr(imports, "_finders", [])
    monkeypatch.syspath_prepend(tmp_path)
    table = [
        patches.Patch("half_there", name, "part.ours", "", late=True) for name in ("load", "move")
    ]
    hook_in = lambda: patches.apply(table, {"part": SimpleNamespace(ours=ours)}, "2.11.0")  # noqa: E731
    monkeypatch.setitem(sys.modules, "like_torch", SimpleNamespace(hook_in=hook_in))
    code = "import like_torch\nlike_torch.hook_in()\ndef load(): return 'theirs'\n"
    (tmp_path / "half_there.py").write_text(code + ends)
    if ends:
        with pytest.raises(ValueError, match=r"^$"):
            importlib.import_module("half_there")
        assert doubted() == []
        return
    half_there = importlib.import_module("half_there")
    del sys.modules["half_there"]
    assert half_there.load() == "ours, then theirs"
    assert type(half_there.__spec__) is ModuleSpec
    assert doubted() == [("hook-missing", "no half_there.move in this release")]


def test_every_row_says_where_its_name_is_defined(patches: ModuleType) -> None:
    rows = [
        *patches.FIRST,
        *patches.DEVICE,
        *patches.CPU,
        *patches.OFFLINE,
        *(row for rows in patches.ADVICE.values() for row in rows),
    ]
    assert all(row.source.endswith((".py", ".cpp", ".pyi")) for row in rows)
    assert all(row.late for row in rows if not row.owner.startswith(("torch", "urllib")))


ASKED_AT_ONCE = {
    "_c10d_functional": "`Collectives.begin` notes the doubt",
    "_cuda_init": "`Workspaces.of` leaves its questions unasked",
    "_index_put_impl_": "an operator",
}
"""Private names of torch that stand in no row, and why none ends a script."""


def test_every_private_name_of_torch_stands_in_the_table(patches: ModuleType) -> None:
    rows = [*patches.DEVICE, *patches.CPU]
    listed = {row.name for row in rows} | {
        part for row in rows for part in row.owner.replace(":", ".").split(".")
    }
    read = {
        node.attr
        for path in (PROBE / "_xmem").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr)
        if ast.unparse(node.value).startswith(
            ("torch.", "self._torch.", "native", "c10d", "_c10d()")
        )
    }
    assert read - listed == set(ASKED_AT_ONCE)
