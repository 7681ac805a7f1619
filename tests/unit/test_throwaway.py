"""A dry run's folder is its own, and there, however many starts clear away meanwhile."""

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
