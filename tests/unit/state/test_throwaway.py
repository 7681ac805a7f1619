"""A dry run's folder is its own, and there, however many starts clear away meanwhile."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from xmem_slurm.state import throwaway


def test_a_folder_that_another_start_cleared_before_it_was_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def cleared_at_first(prefix: str, dir: Path) -> str:  # noqa: A002 (mkdtemp's own name)
        made.append(mkdtemp(prefix=prefix, dir=dir))
        if len(made) == 1:
            with throwaway.made(tmp_path, prefix):
                pass
        return made[-1]

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", cleared_at_first)
    with throwaway.made(tmp_path, "xmem-test-") as folder:
        assert folder.is_dir()
        assert made.index(str(folder)) > 0


def _made_and_left(place: Path) -> None:
    """Be a user whose umask leaves them nothing of what they make; one folder is of before, and
    left by a kill."""
    if os.geteuid() == 0:
        os.setuid(65534)
    os.umask(0o777)
    (place / "xmem-test-left").mkdir()
    with throwaway.made(place, "xmem-test-") as folder:
        (folder / "made").touch()
        (folder / "closed").mkdir()
    assert list(place.iterdir()) == []


def test_what_nobody_may_look_into_is_cleared_away_all_the_same() -> None:
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # where somebody else gets to, too
    try:
        place.chmod(0o777)
        process = multiprocessing.get_context("fork").Process(target=_made_and_left, args=(place,))
        process.start()
        process.join()
        assert process.exitcode == 0
    finally:
        throwaway.remove(place)
