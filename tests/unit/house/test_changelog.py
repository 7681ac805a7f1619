"""The version is the one that CHANGELOG.md begins with, and each fragment of news is one that will
be in the next."""

import re
import tomllib
from pathlib import Path

from xmem_slurm import __version__

ROOT = Path(__file__).parents[3]
NEWS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]


def test_the_changelog_begins_with_this_version() -> None:
    """If not: `make changelog VERSION=x.y.z`."""
    versions = re.findall(
        r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions[0] == __version__
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)


def test_a_fragment_of_news_has_a_type_and_a_sentence() -> None:
    """towncrier passes over what it cannot place, without a word."""
    kinds = "|".join(kind["directory"] for kind in NEWS["type"])
    for path in (ROOT / NEWS["directory"]).iterdir():
        if path.name != "README.md":
            assert re.fullmatch(rf"\+[a-z0-9-]+\.({kinds})\.md", path.name), path.name
            assert path.read_text(encoding="utf-8").rstrip().endswith("."), path.name
