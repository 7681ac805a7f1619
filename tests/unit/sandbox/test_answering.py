"""A file system that does not answer costs a dry run some seconds, once, and no more."""

import os
from pathlib import Path

import pytest

from xmem_slurm.sandbox import answering
from xmem_slurm.sandbox.mounts import Mount, visible


@pytest.fixture
def mounts(tmp_path: Path) -> list[Mount]:
    names = {
        "home": "nfs4",
        "gone": "fuse.sshfs",
        "closed": "fuse.sshfs",
        "root": "ext4",
        "dev": "devtmpfs",
    }
    (tmp_path / "home").touch()
    for name in ("gone", "root", "dev"):
        os.mkfifo(tmp_path / name)
    return [
        Mount(number, 0, tmp_path / name, kind) for number, (name, kind) in enumerate(names.items())
    ]


def test_who_does_not_answer_is_known_at_once_the_next_time(
    mounts: list[Mount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes to the pipes, so that whoever reads one waits; who is not there answers
    that."""
    monkeypatch.setattr(answering, "SECONDS", 5.0)
    try:
        assert answering.silent(mounts, frozenset({"devtmpfs"}), ["cat"]) == [tmp_path / "gone"]
        monkeypatch.setattr(answering, "SECONDS", 1000.0)
        assert answering.silent(mounts, frozenset({"devtmpfs"}), ["cat"]) == [tmp_path / "gone"]
    finally:
        os.close(os.open(tmp_path / "gone", os.O_RDWR | os.O_NONBLOCK))


def test_what_is_mounted_here_answers() -> None:
    here = mounts_of_this_machine()
    assert answering.silent(here, frozenset()) == []


def mounts_of_this_machine() -> list[Mount]:
    return visible(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
