"""benchmarks/README.md has a row for each module that can be run, and says where its figures are."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \|.*\|([^|]*)\|$", README, re.MULTILINE))


def can_be_run() -> set[str]:
    """Return what `python -m benchmarks.NAME` takes; scripts of workloads/ are run by these."""
    paths = (path.relative_to(FOLDER) for path in FOLDER.rglob("*.py"))
    return {
        ".".join(path.with_suffix("").parts).removesuffix(".__main__")
        for path in paths
        if path.parts[0] not in {"workloads", "data"}
        and 'if __name__ == "__main__":' in (FOLDER / path).read_text(encoding="utf-8")
    }


def test_each_benchmark_has_a_row_and_no_row_is_of_another() -> None:
    assert ROWS.keys() == can_be_run()


@pytest.mark.parametrize("name", ROWS)
def test_the_figures_of_a_benchmark_are_where_its_row_says(name: str) -> None:
    module = name.partition(".")[0]
    for link in re.findall(r"\]\(([^)]+)\)", ROWS[name]):
        text = (FOLDER / link).read_text(encoding="utf-8")
        assert re.search(rf"\bbenchmarks[./]{module}\b", text), link
