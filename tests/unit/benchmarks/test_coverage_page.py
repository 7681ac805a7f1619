"""docs/coverage.md is what benchmarks/data says, and every script of the list can be set up."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import coverage
from xmem_slurm.doubts import Doubt


def test_the_page_is_the_one_that_the_results_give() -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.page(), (
        "run `python -m benchmarks.coverage page`"
    )


def test_each_script_is_listed_once_and_its_data_can_be_made() -> None:
    listed = coverage.scripts()
    assert len({script.key for script in listed}) == len(listed)
    recipes = (coverage.HERE / "coverage_data.py").read_text(encoding="utf-8")
    for entry in (entry for script in listed for entry in script.data):
        assert f"def {entry.partition(':')[0]}(folder" in recipes


@pytest.mark.parametrize("bare", [False, True])
def test_what_a_clone_has_is_checked_out(bare: bool, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git = ["git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", clone], ["add", "."], ["commit", "-qm", "first"]):
        if words[0] == "add":
            (clone / "folder").mkdir()
            (clone / "folder" / "train.py").write_text("print(1)\n")
            (clone / "run.sh").write_text("true\n")
            (clone / "run.sh").chmod(0o755)
            (clone / "link").symlink_to("run.sh")
        subprocess.run([*git, *words] if words[0] != "init" else ["git", *words], check=True)
    commit = coverage.check_out(clone / ".git" if bare else clone, tmp_path / "out")
    assert len(commit) == 40
    assert (tmp_path / "out" / "folder" / "train.py").read_text() == "print(1)\n"
    assert (tmp_path / "out" / "link").readlink() == Path("run.sh")
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_a_script_whose_loops_were_cut_has_not_reached_its_end() -> None:
    cut = "the script's own end (9 steps seen, with loops over data cut short from there on)"
    reasons = [Doubt.NOT_REACHED.sentence.format(detail=cut)]
    assert not coverage.Result("", "", 1.0, 1, reasons=reasons, seen={"end": True}).reached_end
    for epochs, reached in (
        (None, True),
        ({"done": 3, "of": 3}, True),
        ({"done": 3, "of": 90}, False),
    ):
        assert (
            coverage.Result("", "", 1.0, 1, seen={"end": True, "epochs": epochs}).reached_end
            is reached
        )


def test_reasons_of_one_kind_are_counted_together() -> None:
    reasons = [
        Doubt.ASSUMED_VALUES.sentence.format(detail=f"a number (train.py:{line})")
        for line in (1, 2)
    ]
    reasons.append("only rank 0 of 2 was run and stands for all")
    kinds = coverage.Result("", "", 1.0, 1, reasons=reasons).kinds_of_reasons
    assert kinds == {
        Doubt.ASSUMED_VALUES.sentence.replace("{detail}", "…"),
        "only rank … of … was run and stands for all",
    }
