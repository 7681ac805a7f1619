"""What does not answer keeps no submission: a process that can be left behind touches it first."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.harness.hung_mount import hung
from tests.harness.told import messages
from xmem_slurm.dryrun import evidence
from xmem_slurm.errors import SilentPlace
from xmem_slurm.state import silent

GPU = "#!/bin/sh\n#SBATCH --gres=gpu:h200:1\ntrue\n"
XSBATCH = """
import sys
sys.path[:0] = {path!r}
from xmem_slurm.state import silent
silent.SECONDS = 0.5
from xmem_slurm.cli import xsbatch
xsbatch.main()
"""
IS_ROOT = pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="mounts what does not answer"
)


@pytest.fixture(autouse=True)
def nothing_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent, "_answered", {})
    monkeypatch.setattr(silent, "_passed", set())


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    (tmp_path / "silent").mkdir()
    (tmp_path / "link").symlink_to("silent/home")
    (tmp_path / "job.sh").write_text(GPU)
    (tmp_path / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    return tmp_path / "silent"


def submit(
    inside: Sequence[str], mount: Path, *argv: str, environ: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run xsbatch with `echo` as sbatch; fail where it hangs, which ends with the mount."""
    folder = mount.parent
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XMEM_SBATCH": "/bin/echo",
        "XMEM_SITE": str(EXAMPLE_SITE),
        "XDG_CACHE_HOME": str(folder / "cache"),
        **(environ or {}),
    }
    started = subprocess.Popen(
        [*inside, sys.executable, "-c", XSBATCH.format(path=sys.path), *argv],
        env={name: value for name, value in given.items() if value},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = started.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")
    return started.returncode, out, err


PLACES = {
    "the site file": {"XMEM_SITE": "{mount}/site.toml"},
    "the home": {"HOME": "{mount}", "XDG_CACHE_HOME": ""},
    "the home alone": {"HOME": "{mount}", "XDG_CONFIG_HOME": "/etc", "XDG_STATE_HOME": "/srv"},
    "the settings": {"XDG_CONFIG_HOME": "{mount}"},
    "the cache": {"XDG_CACHE_HOME": "{mount}"},
    "the state folder": {"XDG_STATE_HOME": "{mount}"},
    "a link to it": {"XDG_STATE_HOME": "{mount}/../link"},
    "temporary files": {"TMPDIR": "{mount}"},
    "a folder on PATH": {"PATH": "/usr/bin:/bin:{mount}"},
    "a report": {"XMEM_REPORT": "{mount}/report.html"},
}


@IS_ROOT
@pytest.mark.parametrize("place", PLACES)
def test_a_job_goes_as_written_where_a_place_does_not_answer(mount: Path, place: str) -> None:
    environ = {name: value.format(mount=mount) for name, value in PLACES[place].items()}
    with hung(mount) as inside:
        code, out, err = submit(inside, mount, "-n1", "job.sh", "--epochs=3", environ=environ)
    assert (code, out) == (0, "-n1 job.sh --epochs=3\n")
    assert (
        messages(err)
        == f"xsbatch: submitted as written: the file system at {mount} does not answer\n"
    )


@IS_ROOT
@pytest.mark.parametrize("option", ["--xmem-site", "--xmem-html"])
def test_an_option_that_names_such_a_file_costs_no_submission(mount: Path, option: str) -> None:
    with hung(mount) as inside:
        code, out, err = submit(inside, mount, f"{option}={mount}/file", "job.sh")
    assert (code, out) == (0, "job.sh\n")
    assert (
        messages(err)
        == f"xsbatch: submitted as written: the file system at {mount} does not answer\n"
    )


@IS_ROOT
def test_whom_it_does_not_concern_is_not_told(mount: Path) -> None:
    """A job without a GPU reads the site file alone; one that is off reads nothing."""
    with hung(mount) as inside:
        home = {"HOME": str(mount), "XDG_CACHE_HOME": ""}
        assert submit(inside, mount, "plain.sh", environ=home) == (0, "plain.sh\n", "")
        nothing = home | {"XMEM_SITE": str(mount / "site.toml"), "XMEM_OFF": "1"}
        assert submit(inside, mount, "job.sh", environ=nothing) == (0, "job.sh\n", "")


@IS_ROOT
@pytest.mark.parametrize("line", [". {mount}/environment.sh", "cd ${{DATA}}/run"])
def test_a_script_that_names_such_a_path_goes_as_it_was_written(mount: Path, line: str) -> None:
    (mount.parent / "job.sh").write_text(f"{GPU}{line.format(mount=mount)}\n")
    with hung(mount) as inside:
        code, out, err = submit(inside, mount, "job.sh", environ={"DATA": f"{mount}/data"})
    assert (code, out) == (0, "job.sh\n")
    assert (
        messages(err)
        == f"xsbatch: submitted as written: the file system at {mount} does not answer\n"
    )


def left_behind(mount: Path) -> list[str]:
    """Return the processes of submissions that had this state folder, and have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"XDG_STATE_HOME={mount}\0".encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
    return found


@IS_ROOT
def test_many_submissions_leave_one_process_which_ends_with_the_mount(mount: Path) -> None:
    state = {"XDG_STATE_HOME": str(mount)}
    with hung(mount) as inside:
        for _ in range(3):
            assert submit(inside, mount, "job.sh", environ=state)[0] == 0
        assert len(left_behind(mount)) == 1
    end = time.monotonic() + 30
    while left_behind(mount) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_behind(mount) == []


def test_nobody_is_asked_where_the_kernel_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {"/": "ext4", "/proc": "proc", "/net": "nfs4"}
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork"))
    monkeypatch.setattr(silent, "_mounted", lambda _: kinds)
    assert silent.mount_on_the_way([tmp_path, "/etc/no/such", "relative", "a\0b"]) is None


def test_each_mount_is_asked_once_and_links_are_followed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "home"
    (home / "user").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (home / "user" / "link").symlink_to("../../data/./x")
    (home / "loop").symlink_to("loop")
    kinds = {"/": "ext4", f"{tmp_path}/home": "nfs4", f"{tmp_path}/data": "fuse.sshfs"}
    monkeypatch.setattr(silent, "_mounted", lambda _: kinds)
    looks: list[Sequence[str]] = []
    look = silent._look
    monkeypatch.setattr(silent, "_look", lambda points: looks.append(points) or look(points))
    place = home / "user" / "link" / "y"
    assert silent.mount_on_the_way([place, home / "user", home / "loop"]) is None
    assert looks == [[f"{tmp_path}/home"], [f"{tmp_path}/data"]]
    silent.require_answers([place])
    assert len(looks) == 2
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    silent.require_answers([place])
    assert len(looks) == 4, "a dry run takes long: a server may have gone meanwhile"


def test_an_automounter_is_asked_for_what_it_mounts_when_it_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    monkeypatch.setattr(silent, "_mounted", lambda _: {"/": "ext4", str(tmp_path): "autofs"})
    monkeypatch.setattr(silent, "_look", looks.extend)
    assert silent.mount_on_the_way([tmp_path / "user" / ".config"]) is None
    assert looks == [str(tmp_path), f"{tmp_path}/user"]


def test_where_no_process_can_be_started_all_is_taken_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(silent, "_mounted", lambda _: {"/": "nfs4"})
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert silent.mount_on_the_way([tmp_path]) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_an_answer_rests_on_is_not_as_it_was_where_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("x")
    noted = evidence.as_it_is(tmp_path / "data")
    assert evidence.lasting([noted]) is not None
    monkeypatch.setattr(silent, "_mounted", lambda _: {str(tmp_path): "nfs"})
    monkeypatch.setattr(silent, "_look", lambda points: points[0])
    changed = evidence.changed([noted])
    assert changed is not None
    assert changed.path == str(tmp_path)
    assert evidence.lasting([noted]) is None
    assert evidence.as_it_is(tmp_path / "data").kind == "A"
    with pytest.raises(SilentPlace, match=f"the file system at {tmp_path} does not answer"):
        silent.require_answers([tmp_path / "data"])


def test_the_kinds_of_mounts_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/vda rw\n"
        "30 22 0:40 / /home\\040of\\134all/ä rw shared:7 master:2 - nfs4 server:/home rw\n"
        "31 22 0:41 / /over rw - nfs server:/x rw\n"
        "32 31 0:42 / /over rw - tmpfs none rw\n",
        encoding="utf-8",
    )
    mounted = silent._mounted(str(tmp_path / "mountinfo"))
    assert mounted == {"/": "ext4", "/home of\\all/ä": "nfs4", "/over": "tmpfs"}
    assert silent._mounted(str(tmp_path / "none")) == {}
