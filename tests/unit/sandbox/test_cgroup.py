"""Which control group a dry run's own can be made in, told from what the kernel says and who may
write where."""

import os
import socket
import time
from pathlib import Path

import pytest

from xmem_slurm.sandbox import cgroup
from xmem_slurm.units import MIB


def tree(top: Path, **controllers: str) -> str:
    """Make groups, each below the one before, that hand out these controllers; return what
    mountinfo says of them."""
    folder = top
    for number, (name, given) in enumerate(controllers.items()):
        folder = folder / name if number else folder
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(given)
        (folder / "cgroup.procs").touch()
    return f"30 23 0:26 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("0::/user/session\n", "user"),
        ("0::/user\n", "user"),
        ("0::/\n", None),
        ("4:memory:/x\n0::/user/session\n", "user"),
        ("4:memory:/x\n", None),
        ("0::/../other\n", None),
        ("0::/gone/user\n", None),
    ],
)
def test_the_nearest_group_that_hands_out_memory_and_pids(
    tmp_path: Path, own: str, found: str | None
) -> None:
    mountinfo = tree(tmp_path, root="cpu", user="cpuset cpu memory pids", session="")
    assert cgroup.above(mountinfo, own) == (None if found is None else tmp_path / found)


def test_a_group_of_somebody_else_s_is_not_divided(tmp_path: Path) -> None:
    mountinfo = tree(tmp_path, root="memory pids", session="")
    assert cgroup.above(mountinfo, "0::/session\n") == tmp_path
    if os.geteuid():
        (tmp_path / "cgroup.procs").chmod(0o444)
        assert cgroup.above(mountinfo, "0::/session\n") is None
    assert cgroup.above(mountinfo.replace("cgroup2", "cgroup"), "0::/session\n") is None


def test_it_is_made_with_all_limits_and_what_was_left_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "divisible", lambda: tmp_path)
    (tmp_path / "xmem-slurm-999999999").mkdir()
    (tmp_path / "xmem-slurm-1").mkdir()
    with cgroup.own(1 << 30, 64, 2) as group:
        assert group is not None
        assert {each.name: each.read_text() for each in group.iterdir()} == {
            "memory.max": "1073741824",
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "pids.max": "64",
            "cpu.max": "200000 100000",
        }
        for each in group.iterdir():  # the kernel's are no files that keep a group from going
            each.unlink()
        assert {each.name for each in tmp_path.iterdir()} == {group.name, "xmem-slurm-1"}
    assert not group.exists()


@pytest.mark.parametrize("bus", ["none", "a file", "one that does not answer"])
def test_where_the_user_s_systemd_does_not_answer_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bus: str
) -> None:
    monkeypatch.setattr(cgroup, "_RUNTIME", tmp_path)
    monkeypatch.setattr(cgroup, "divisible", lambda: None)
    place = tmp_path / str(os.geteuid())
    place.mkdir()
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as listening:
        if bus == "a file":
            (place / "bus").touch()
        elif bus != "none":
            listening.bind(str(place / "bus"))
            listening.listen()
        assert cgroup.scope(1 << 30, 64, 2) is None
        assert "a filter of system calls and a watch" in cgroup.told()
    assert time.monotonic() - begun < 60, "it is not waited for without end"


def test_what_the_user_s_systemd_gives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "divisible", lambda: None)
    monkeypatch.setattr(cgroup, "_manager", lambda *_call: True)
    assert cgroup.told().endswith("by a control group of their own, from this user's systemd")


def test_a_group_thrashes_that_reads_all_its_room_again_with_none_left_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that reads a large data set again, as it has most of its room for that; nor one that
    takes an hour."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")

    def said(file_mib: int, pages: int) -> None:
        text = f"active_file {file_mib * MIB}\ninactive_file 0\nworkingset_refault_file {pages}\n"
        (tmp_path / "memory.stat").write_text(text)

    said(90, 0)
    group = cgroup.Opened(tmp_path)
    pages = 0
    for files, seconds, pages_a_second, thrashes in (
        (90, 60, 9000, False),
        (1, 60, 800, False),
        (1, 20, 9000, True),
    ):
        seen = False
        for _ in range(seconds):
            now, pages = now + 1, pages + pages_a_second
            said(files, pages)
            seen = seen or group.thrashes()
        assert seen is thrashes
