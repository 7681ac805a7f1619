"""The house stays one to live in: a class name for one meaning, docstrings, no state
hidden in modules."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "xmem_slurm"
PROBE = PACKAGE / "probe"


FORMS = {"Estimate", "Failure", "Group", "Option", "Phase", "Seen"}
"""Names of which one class is the form of another in a file, in the JSON report or in Python: one
meaning for both."""

MOST_VARIABLES = 4
"""Of the probe's modules: what waits for imports, what was asked for, what was made, what is
doubted."""


@cache
def modules(folder: Path = PACKAGE) -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))
    }


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict[str, list[str]](list)
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    meanings = {name: len(where) - (name in FORMS) for name, where in places.items()}
    more = {name: places[name] for name, count in meanings.items() if count > 1}
    assert more == {}, "a name that is taken"
    assert {name for name in FORMS if meanings.get(name, 0) == 0} == set(), (
        "one class: take it out of FORMS"
    )


def names(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield what is assigned at the top of a module, also under `if` and `try`."""
    for statement in statements:
        match statement:
            case ast.Assign(targets=targets):
                yield from (
                    node.id
                    for target in targets
                    for node in ast.walk(target)
                    if isinstance(node, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.For() | ast.With() | ast.Try():
                parts = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
                for part in [
                    *parts,
                    *(handler.body for handler in getattr(statement, "handlers", [])),
                ]:
                    yield from names(part)


def test_the_probe_keeps_its_state_in_objects() -> None:
    """A name in capitals is a constant (and CamelCase a type); every other is taken for a
    variable."""
    found = []
    for path, module in modules(PROBE).items():
        rebound = {
            name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names
        }
        variables = {name for name in names(module.body) if name == name.lower() and name != "_"}
        found += [f"{path.stem}.{name}" for name in sorted(rebound | variables)]
    assert len(found) <= MOST_VARIABLES, found


CHANGES = {
    "append",
    "add",
    "update",
    "setdefault",
    "clear",
    "pop",
    "popleft",
    "extend",
    "discard",
    "remove",
}


def test_a_constant_of_the_probe_is_one() -> None:
    """What the count above takes for a constant is not changed by its module."""
    changed = []
    for path, module in modules(PROBE).items():
        for node in ast.walk(module):
            match node:
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if (
                    name.isupper()
                ):
                    changed.append(f"{path.name}:{node.lineno} {name}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=how)) if (
                    name.isupper()
                ):
                    changed += [f"{path.name}:{node.lineno} {name}"] if how in CHANGES else []
    assert changed == []
