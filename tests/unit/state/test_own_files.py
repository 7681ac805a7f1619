"""Our own folders and files, and those that a user asks for: whose they are, and what is never
replaced."""

import os
import stat
from pathlib import Path

import pytest

from xmem_slurm.state import own_files

CONTENT = b"whole"
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="gives things away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return own_files.make(tmp_path / "made" / "ours")


def test_a_folder_of_ours_is_private(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert own_files.make(folder) == folder


@pytest.mark.parametrize(
    "what", ["a link", "open to a group", "open to all", "a file", "its parent is open to all"]
)
def test_a_folder_where_others_could_exchange_a_file_is_refused(folder: Path, what: str) -> None:
    if what == "a link":
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
    elif what == "a file":
        folder.rmdir()
        folder.touch()
    elif what == "its parent is open to all":
        folder.parent.chmod(0o777)
    else:
        folder.chmod(0o770 if what == "open to a group" else 0o707)
    with pytest.raises(OSError, match=r"a link, another user's|File exists"):
        own_files.make(folder)


@ROOT
def test_a_folder_of_somebody_else_is_refused(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    with pytest.raises(OSError, match="another user's"):
        own_files.make(folder)


def test_a_file_is_there_whole_or_not_at_all(folder: Path) -> None:
    own_files.write(folder / "file", CONTENT)
    with pytest.raises(OSError, match="too long"):
        own_files.write(folder / ("x" * 300), CONTENT)
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert own_files.read(folder / "file", 100) == CONTENT
    with pytest.raises(OSError, match="not ours"):
        own_files.read(folder / "file", 3)


def odd(path: Path, what: str) -> None:
    if what == "a FIFO":
        os.mkfifo(path)
    elif what == "a socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif what == "a folder":
        path.mkdir()
    elif what == "a link to a FIFO":
        os.mkfifo(path.with_name("target"))
        path.symlink_to("target")


@pytest.mark.parametrize("what", ["a FIFO", "a socket", "a folder", "a link to a FIFO"])
def test_what_is_no_file_is_neither_replaced_nor_waited_for(tmp_path: Path, what: str) -> None:
    path = tmp_path / "report.json"
    odd(path, what)
    before = path.lstat()
    with pytest.raises(OSError, match="neither a file nor a device"):
        own_files.write_for_user(path, CONTENT)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)


@ROOT
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """Of the same numbers as /dev/null, which a test must not risk."""
    path = tmp_path / "null"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    own_files.write_for_user(path, CONTENT)
    assert stat.S_ISCHR(path.lstat().st_mode)
    (tmp_path / "link").symlink_to("null")
    own_files.write_for_user(tmp_path / "link", CONTENT)
    assert (tmp_path / "link").is_symlink()
    assert stat.S_ISCHR(path.lstat().st_mode)


def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"before")
    (tmp_path / "target").chmod(0o640)
    (tmp_path / "link").symlink_to("target")
    own_files.write_for_user(tmp_path / "link", CONTENT)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640


@ROOT
def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"before")
    (tmp_path / "link").symlink_to("target")
    os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match="a link that another user made"):
        own_files.write_for_user(tmp_path / "link", CONTENT)
    assert (tmp_path / "target").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("name", "variable", "usual"),
    [
        ("cache_folder", "XDG_CACHE_HOME", ".cache"),
        ("record_folder", "XDG_STATE_HOME", ".local/state"),
        ("data_folder", "XDG_DATA_HOME", ".local/share"),
        ("config_file", "XDG_CONFIG_HOME", ".config"),
    ],
)
def test_the_user_s_folders_are_where_the_specification_has_them(
    name: str, variable: str, usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    found = getattr(own_files, name)
    for value in ("", "relative"):
        monkeypatch.setenv(variable, value)
        assert found("x") == Path("/home/ada", usual, "xmem-slurm/x")
    monkeypatch.setenv(variable, "/scratch/ada")
    assert found("x") == Path("/scratch/ada/xmem-slurm/x")
