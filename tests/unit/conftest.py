"""What holds for each unit test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def line_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no dry run of this machine come before those of a test: each cluster has a line
    (`dryrun/admission`)."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
