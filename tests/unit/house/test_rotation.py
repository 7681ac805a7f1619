"""A slow test is left out only where nothing that it covers has changed, and for some days at
most."""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.harness import rotation

ROOT = Path(__file__).parents[3]


def slow_marks() -> list[ast.Call]:
    trees = [
        ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("test_*.py")
    ]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == "pytest.mark.slow"]


def test_what_is_covered_exists() -> None:
    tops = (
        "xmem_slurm",
        "tests",
        "templates",
        "site-config",
        "launchers",
        "share",
        "benchmarks",
        "examples",
    )
    files = [str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*")]
    files += [path.name for path in ROOT.iterdir()]
    patterns = {
        pattern for mark in slow_marks() for pattern in ast.literal_eval(mark.keywords[0].value)
    }
    assert patterns
    assert [
        each for each in sorted(patterns) if not any(fnmatch(file, each) for file in files)
    ] == []


@pytest.mark.parametrize("every", [2, 7, 14])
def test_each_test_runs_once_in_so_many_days(every: int) -> None:
    for nodeid in ("tests/a.py::test_b", "tests/a.py::test_c[1]"):
        assert (
            sum(rotation.is_due(nodeid, every, day) for day in range(20_000, 20_000 + every)) == 1
        )


@pytest.mark.parametrize(
    ("file", "touched"),
    [("tests/t.py", True), ("xmem_slurm/probe/_xmem_triton.py", True), ("xmem_slurm/probe/_xmem/triton.py", True),
     ("xmem_slurm/probe/_xmem_ranks.py", False), ("tests/u.py", False)],
)  # fmt: skip
def test_what_it_covers_or_is_itself_makes_it_run(file: str, touched: bool) -> None:
    assert rotation.is_touched("tests/t.py", ["xmem_slurm/probe/*triton*"], [file]) is touched


def test_in_a_clone_with_one_commit_and_without_git_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XMEM_TEST_BASE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(rotation, "_ROOT", tmp_path)
    assert (rotation.base(), rotation.changed(None)) == (None, set())
    user = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    rotation.git("init", "-q")
    for name in ("one", "two"):
        (tmp_path / name).touch()
        rotation.git("add", name)
        rotation.git(*user, "commit", "-qm", name)
        if name == "one":
            assert (rotation.base(), rotation.changed(None)) == (None, set())
    assert rotation.changed(rotation.base()) == {"two"}
    (tmp_path / "three").touch()
    assert rotation.changed(rotation.base()) == {"two", "three"}
    monkeypatch.setenv("PATH", "")
    assert (rotation.base(), rotation.changed(None)) == (None, set())


def test_of_many_of_a_kind_some_run_each_time() -> None:
    slow = pytest.mark.slow(covers=["tests/*"])
    assert [list(each.marks) for each in rotation.some_each_time(["a", "b"], ["b"], slow)] == [
        [slow],
        [],
    ]
