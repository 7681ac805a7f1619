"""What the sandbox reads about this machine before it builds a new root."""

import os
from pathlib import Path

import pytest

from xmem_slurm.sandbox import mounts

MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw shared:5 - proc proc rw
24 22 0:6 / /dev rw - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
26 24 0:24 / /dev/pts rw - devpts devpts rw
27 26 0:25 / /dev/pts rw - devpts devpts rw
30 22 0:30 / /home rw master:1 propagate_from:2 - autofs auto.home rw
31 30 0:31 / /home/al\\040ice rw shared:7 - nfs4 server:/x\\054y rw
40 22 0:40 / /data/a rw - ext4 /dev/vdb rw
41 40 0:41 / /data/a/inner rw - ext4 /dev/vdc rw
42 22 0:42 / /data rw - xfs /dev/vdd rw
"""


def test_only_mounts_that_a_path_reaches_are_seen() -> None:
    seen = {(str(mount.point), mount.kind, mount.number) for mount in mounts.visible(MOUNTINFO)}
    assert seen == {
        ("/", "ext4", 22),
        ("/proc", "proc", 23),
        ("/dev", "devtmpfs", 24),
        ("/dev/shm", "tmpfs", 25),
        ("/dev/pts", "devpts", 27),  # 26 lies below it
        ("/home", "autofs", 30),
        ("/home/al ice", "nfs4", 31),
        ("/data", "xfs", 42),  # over 40, and with it 41
    }


def test_this_machine_s_mounts_are_folders_and_files_that_exist() -> None:
    found = mounts.visible(Path("/proc/self/mountinfo").read_text())
    assert Path("/") in {mount.point for mount in found}
    assert len({mount.point for mount in found}) == len(found)


def test_sockets_are_paths_without_symlinks_and_name_services_stay(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    header = "Num       RefCount Protocol Flags    Type St Inode Path\n"
    line = "00000000b7b5b1a6: 00000002 00000000 00010000 0001 01 {} {}\n"
    paths = [f"{tmp_path}/link/a b", "@/tmp/abstract", "/var/lib/sss/pipes/nss", "relative/path"]
    text = header + "".join(line.format(number, path) for number, path in enumerate(paths))
    text += "00000000b7b5b1a6: 00000003 00000000 00000000 0001 03 99\n"
    assert mounts.bound_sockets(text) == [tmp_path / "real" / "a b"]


def test_places_to_write_are_absolute_and_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = mounts.places_to_write(tmp_path / "link", {"HOME": str(tmp_path), "TMPDIR": "relative"})
    assert found[0] == tmp_path / "real"
    assert {Path("/tmp"), tmp_path} <= set(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_is_not_ours_is_found(tmp_path: Path) -> None:
    for name in ("ours", "group/file", "group/big"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.truncate(tmp_path / "group/big", mounts.FOREIGN_FILE_BYTES + 1)
    (tmp_path / "group/link").symlink_to("file")
    for path in (tmp_path / "group").rglob("*"):
        os.chown(path, -1, 54321, follow_symlinks=False)
    os.chown(tmp_path / "group", -1, 54321)
    assert mounts.foreign(tmp_path) == [tmp_path / "group", tmp_path / "group/file"]
