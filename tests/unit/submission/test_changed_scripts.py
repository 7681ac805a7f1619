"""Copies of changed scripts: each under its own name, private, and cleared away when old or too
many."""

import os
import time
from pathlib import Path

import pytest

from xmem_slurm.submission import changed_scripts


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "xmem-slurm" / "jobs"


def aged(jobs: Path, name: str, seconds: float) -> Path:
    folder = jobs / name
    folder.mkdir(parents=True)
    (folder / "job.sh").write_text("old")
    os.utime(folder, (time.time() - seconds,) * 2)
    return folder


def test_a_copy_has_the_scripts_name_and_is_private(jobs: Path) -> None:
    first, second = changed_scripts.keep("job.sh", b"1"), changed_scripts.keep("job.sh", b"2")
    assert (first.name, first.read_bytes(), second.read_bytes()) == ("job.sh", b"1", b"2")
    assert first.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in (jobs, first.parent)} == {0}


def test_old_copies_go_and_young_ones_stay(jobs: Path) -> None:
    old = aged(jobs, "old", (changed_scripts.KEPT_DAYS + 1) * 86400)
    young = aged(jobs, "young", (changed_scripts.KEPT_DAYS - 1) * 86400)
    path = changed_scripts.keep("job.sh", b"")
    assert not old.exists()
    assert young.exists()
    assert path.exists()


def test_no_more_than_so_many_stay_but_for_those_that_sbatch_may_not_have_read(
    jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_scripts, "KEPT_MOST", 3)
    oldest = [aged(jobs, f"old{n}", changed_scripts.KEPT_SECONDS + 100 + n) for n in range(3)]
    fresh = [aged(jobs, f"fresh{n}", n) for n in range(5)]
    changed_scripts.keep("job.sh", b"")
    assert not any(folder.exists() for folder in oldest)
    assert all(folder.exists() for folder in fresh)


def test_what_is_not_ours_stays(jobs: Path) -> None:
    folder = aged(jobs, "mine", 1e8)
    (folder / "folder").mkdir()
    os.utime(folder, (0, 0))
    changed_scripts.keep("job.sh", b"")
    assert (folder / "folder").exists()


def test_nothing_is_kept_in_a_folder_that_others_can_write_to_or_put_there(jobs: Path) -> None:
    """sbatch reads the script from there; without a copy the job goes as it was written."""
    changed_scripts.keep("job.sh", b"")
    jobs.chmod(0o770)
    with pytest.raises(OSError, match="others can write there"):
        changed_scripts.keep("job.sh", b"")
    jobs.chmod(0o700)
    jobs.rename(jobs.with_name("elsewhere"))
    jobs.symlink_to("elsewhere")
    with pytest.raises(OSError, match="a link"):
        changed_scripts.keep("job.sh", b"")


def test_nothing_is_left_where_it_cannot_be_written(jobs: Path) -> None:
    with pytest.raises(OSError, match="name too long"):
        changed_scripts.keep("x" * 300, b"")
    assert list(jobs.iterdir()) == []
