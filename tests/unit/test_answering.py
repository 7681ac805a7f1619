"""A file system that does not answer costs a dry run some seconds, once, and no more."""

import os
import time
from pathlib import Path

import pytest

from xmem_slurm.sandbox import answering
from xmem_slurm.sandbox.mounts import Mount


@pytest.fixture
def mounts(tmp_path: Path) -> list[Mount]:
    names = {"home": "nfs4", "gone": "fuse.sshfs", "closed": "fuse.sshfs", "root": "ext4", "dev": "devtmpfs"}
    return [Mount(number, 0, tmp_path / name, kind) for number, (name, kind) in enumerate(names.items())]


def test_who_does_not_answer_is_known_at_once_the_next_time(
    mounts: list[Mount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(point: Path) -> None:
        if point.name == "closed":
            raise PermissionError(point)
        assert point.name in ("home", "gone")
        if point.name == "gone":
            (tmp_path / "never").open().read()  # no one writes

    os.mkfifo(tmp_path / "never")
    monkeypatch.setattr(answering, "SECONDS", 0.5)
    try:
        assert answering.silent(mounts, frozenset({"devtmpfs"}), look) == [tmp_path / "gone"]
        began = time.monotonic()
        monkeypatch.setattr(answering, "SECONDS", 60.0)
        assert answering.silent(mounts, frozenset({"devtmpfs"}), look) == [tmp_path / "gone"]
        assert time.monotonic() - began < 30
    finally:
        os.close(os.open(tmp_path / "never", os.O_RDWR | os.O_NONBLOCK))
