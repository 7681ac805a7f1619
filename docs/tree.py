"""tree.py: the tree of docs/architecture.md, from the rules of imports and what each module says of
itself.

`make tree` writes it; a test holds that it is there.
"""  # noqa: INP001

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree -->\n", "<!-- end of tree -->\n"


def page() -> str:
    """Return the page with the tree as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n".join(["", *lines(), "", ""]) + END + rest.partition(END)[2]


def lines() -> Iterator[str]:
    """Return the tree: a layer a paragraph, from the top; what is in one layer does not import each
    other.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    for layer in [*layers, "probe", "recorder"]:
        for name in map(str.strip, layer.split("|")):
            yield from _room(ROOT / "xmem_slurm" / name)


def _room(place: Path) -> Iterator[str]:
    if not place.is_dir():
        yield f"    {place.name + '.py':24}{_said(place.with_suffix('.py'))}"
        return
    yield f"    {place.name + '/':24}{_said(place / '__init__.py')}"
    for each in sorted(place.iterdir()):
        if each.is_dir() and (each / "__init__.py").is_file():
            yield f"      {each.name + '/':22}{_said(each / '__init__.py')}"
        elif each.suffix == ".py" and not each.name.startswith("__"):
            yield f"      {each.stem:22}{_said(each)}"


def _said(module: Path) -> str:
    first = (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").partition(
        "\n\n"
    )[0]
    return " ".join(first.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
