"""The recipes for package managers ask for what pyproject.toml asks for, and are of this
version."""

import ast
import re
import tomllib
from pathlib import Path

from xmem_slurm import __version__

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / "site-config" / "packages"
NEEDED = dict(
    re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups()  # type: ignore[union-attr]
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
)


def calls(recipe: Path) -> list[tuple[str, str]]:
    """Return the first argument of every call in a Spack recipe, with what is called."""
    tree = ast.parse(recipe.read_text())
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return [
        (node.func.id, ast.literal_eval(node.args[0]))
        for node in found
        if isinstance(node.func, ast.Name)
    ]


def test_spack() -> None:
    """The path of a repository of packages must end in spack_repo/NAMESPACE (Spack 1.0,
    `lib/spack/spack/repo.py`)."""
    (repository,) = PACKAGES.glob("spack_repo/*")
    assert f"namespace: {repository.name}\n" in (repository / "repo.yaml").read_text()
    recipe = calls(repository / "packages" / "py_xmem_slurm" / "package.py")
    wanted = {f"py-{name}@{least}:" for name, least in NEEDED.items()}
    given = {name for call, name in recipe if call == "depends_on" and name.startswith("py-")}
    assert given == {*wanted, "py-hatchling@1.27:"}
    assert ("version", __version__) in recipe


def test_easybuild() -> None:
    (recipe,) = PACKAGES.glob("*.eb")
    words: dict[str, object] = {}
    exec(recipe.read_text(), words)  # as EasyBuild reads it
    assert (words["version"], recipe.name.split("-")[2]) == (__version__, __version__)
    named = {each[0] for key in ("dependencies", "exts_list") for each in words[key]}  # type: ignore[attr-defined]
    in_bundle = {"jinja2", "psutil"}
    assert NEEDED.keys() == (named & NEEDED.keys()) | in_bundle


def test_rpm() -> None:
    spec = (PACKAGES / "xmem-slurm.spec").read_text()
    assert re.findall(r"^Version: +(\S+)$", spec, re.MULTILINE) == [__version__]
    assert set(re.findall(r"0\.\d+\.\d+", spec)) == {__version__}
