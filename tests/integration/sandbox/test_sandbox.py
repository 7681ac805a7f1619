"""The sandbox on this machine, with the real kernel: what gets out of it, what is left, what stops
a run.

As root every test runs twice, as root and as nobody; otherwise once, as who we are.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.hung_mount import hung
from xmem_slurm.sandbox import linux, new_root

MIB = 1 << 20
NOBODY = 65534
GROUP = 54321
"""A group that nobody has beside its own, as the members of a project have."""
DRIVER = Path(__file__).with_name("sandbox_driver.py")
IS_ROOT = os.geteuid() == 0
HANG_SECONDS = 60

MEMBARRIER = 324 if os.uname().machine == "x86_64" else 283
LIMITS = {
    "seconds": 60,
    "wall_seconds": 600,
    "memory_bytes": 256 * MIB,
    "processes": 100,
    "scratch_bytes": 128 * MIB,
}


@dataclass
class User:
    """Who runs the sandbox, and a folder of theirs: `folder/work` is the working directory,
    `folder/home` the home."""

    number: int | None
    folder: Path
    marker: str = field(default_factory=lambda: f"marker-{uuid.uuid4().hex}")

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def start(self, script: str, **settings: Any) -> "subprocess.Popen[str]":
        """Start a shell script in the sandbox; "$0" is a marker by which its processes are
        found."""
        request = {
            "argv": settings.get("argv", ["/bin/bash", "-c", script, self.marker]),
            "cwd": str(settings.get("cwd", self.work)),
            "environ": {
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(self.folder / "home"),
                "LC_ALL": "C",
            },
            "limits": LIMITS | settings.get("limits", {}),
            **{
                name: [str(folder) for folder in settings.get(name, [])]
                for name in ("show", "hide")
            },
            "results": str(settings["results"]) if "results" in settings else None,
            "cover": {str(file): str(ours) for file, ours in settings.get("cover", {}).items()},
            "meter": settings.get("meter"),
            "containers": settings.get("containers", False),
            "user": self.number,
            "groups": [NOBODY, GROUP],
            "old_kernel": settings.get("old_kernel", False),
            "unwatched": settings.get("unwatched", False),
        }
        process = subprocess.Popen(
            [*settings.get("within", []), sys.executable, str(DRIVER), self.marker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.work,
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(json.dumps(request))
        return process

    def run(self, script: str, **settings: Any) -> dict[str, Any]:
        """Run it to its end; nothing of it may be left then."""
        with self.start(script, **settings) as process:
            assert process.stdout is not None
            answer = process.stdout.read()
            assert process.wait(HANG_SECONDS) == 0
        assert self.alive() == []
        outcome: dict[str, Any] = json.loads(answer)
        return outcome

    def alive(self, besides: int | None = None) -> list[str]:
        """The command lines of the processes that carry the marker."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and int(folder.name) != besides:
                with suppress(OSError):
                    line = (folder / "cmdline").read_text(errors="replace")
                    if self.marker in line:
                        found.append(line)
        return found

    def own(self, path: Path, group: int | None = None) -> None:
        """Give a path to this user."""
        if self.number is not None:
            os.chown(
                path, self.number, self.number if group is None else group, follow_symlinks=False
            )


@pytest.fixture(params=["root", "nobody"] if IS_ROOT else ["self"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-", dir="/tmp"))
    found = User(NOBODY if request.param == "nobody" else None, folder)
    for each in (folder, folder / "work", folder / "home"):
        each.mkdir(exist_ok=True)
        each.chmod(0o755)
        found.own(each)
    yield found
    shutil.rmtree(folder)


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a folder that a dry run might change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        facts = path.lstat()
        content: object = None
        if stat.S_ISREG(facts.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(facts.st_mode):
            content = str(path.readlink())
        owner = facts.st_uid, facts.st_gid
        found[str(path)] = (
            facts.st_mode,
            owner,
            facts.st_mtime_ns,
            facts.st_ino,
            facts.st_nlink,
            content,
        )
    return found


def populate(user: User, folder: Path, group: int | None = None) -> None:
    """Files and folders to be hurt."""
    for name in ("a", "b", "c/d/e", "c/f", "c/d/g/h"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (folder / "link").symlink_to("a")
    for path in [folder, *folder.rglob("*")]:
        user.own(path, group)


DAMAGE = """
set -e
cd "$1"
echo more >> a; : > b; rm -r c/d; mkdir c/d; echo new > c/d/e; test "$(ls c/d)" = e
mv c moved; mkdir c; chmod 700 moved; chmod 600 a; ln -s b new-link; ln -sf b link; touch -d 2001-01-01 b
mkdir -p x/y/z; echo z > x/y/z/z; mv x/y/z x/; ln a hard; mkfifo pipe; rm new-link
test "$(cat a)" = "$(printf 'a\\nmore')"
"""


@pytest.mark.parametrize("where", ["work", "home", "tmp", "shm"])
def test_the_tree_is_the_same_afterwards(user: User, where: str) -> None:
    roots = {"work": user.work, "home": user.folder / "home"}
    folder = roots.get(
        where, Path({"tmp": "/tmp", "shm": "/dev/shm"}.get(where, "/tmp"), user.marker)
    )
    try:
        folder.mkdir(exist_ok=True)
        populate(user, folder)
        before = tree(folder)
        outcome = user.run(DAMAGE, argv=["/bin/bash", "-c", DAMAGE, user.marker, str(folder)])
        assert (outcome["returncode"], outcome["output_tail"]) == (0, "")
        assert tree(folder) == before
    finally:
        if where in {"tmp", "shm"}:
            shutil.rmtree(folder)


def test_layers_on_disk_where_a_tmpfs_will_not_do(user: User) -> None:
    """Linux before 6.6, but not as root, who has other marks."""
    populate(user, user.work)
    before = tree(user.work)
    outcome = user.run(
        DAMAGE, argv=["/bin/bash", "-c", DAMAGE, user.marker, str(user.work)], old_kernel=True
    )
    assert (outcome["returncode"], outcome["output_tail"], outcome["read_only"]) == (0, "", [])
    assert tree(user.work) == before
    script = (
        f"mkdir x; chmod 0 x; for n in $(seq 20); do head -c {20 * MIB} /dev/zero > $n || "
        "exit; done; sleep 30"
    )
    held = (
        f'for n in $(seq 11 19); do eval "exec $n> x"; rm x; head -c {20 * MIB} /dev/zero >&$n '
        "|| exit; done; sleep 30"
    )
    for each in (script, held):
        outcome = user.run(each, old_kernel=True)
        assert outcome["stopped"] == (None if user.number is None and IS_ROOT else "scratch")
    assert not list(Path("/var/tmp").glob("xmem-layers-*"))


def test_new_files_vanish_wherever_they_are_made(user: User) -> None:
    places = ["/tmp", "/var/tmp", "/dev/shm", str(user.work), str(user.folder / "home")]
    script = "set -e; for place in " + " ".join(places) + '; do echo x > "$place/$0"; done'
    assert user.run(script)["returncode"] == 0
    assert not [place for place in places if Path(place, user.marker).exists()]


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files to another group")
def test_folders_of_a_project_s_group_can_be_written_to(user: User) -> None:
    populate(user, user.work, group=GROUP)
    before = tree(user.work)
    script = "set -e; echo 1 >> c/d/e; mkdir c/new; echo 2 > c/new/file; echo 3 > c/d/new; rm a"
    outcome = user.run(script)
    assert (outcome["returncode"], outcome["output_tail"]) == (0, "")
    assert tree(user.work) == before


@pytest.fixture
def mounted(user: User) -> Iterator[Callable[..., Path]]:
    """Mount things on folders below the user's own."""
    done: list[Path] = []

    def mount(name: str, *arguments: str) -> Path:
        place = user.folder / name
        place.mkdir()
        if not IS_ROOT or subprocess.run(["mount", *arguments, str(place)], check=False).returncode:
            pytest.skip("cannot mount anything here")
        done.append(place)
        return place

    yield mount
    for place in reversed(done):
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("kind", ["tmpfs", "bind", "inside the working directory", "odd name"])
def test_other_mounts_are_protected_too(
    user: User, mounted: Callable[..., Path], kind: str
) -> None:
    source = user.folder / "source"
    source.mkdir()
    arguments = ["--bind", str(source)] if kind == "bind" else ["-t", "tmpfs", "none"]
    name = {"inside the working directory": "work/data", "odd name": "a b,c:d\\e"}.get(kind, "data")
    place = mounted(name, *arguments)
    populate(user, place)
    before = tree(user.folder)
    outcome = user.run(DAMAGE, argv=["/bin/bash", "-c", DAMAGE, user.marker, str(place)])
    assert (outcome["returncode"], outcome["output_tail"], outcome["read_only"]) == (0, "", [])
    assert tree(user.folder) == before


def test_where_no_layer_can_be_put_over_a_folder_its_sockets_are_out_of_reach(
    user: User, mounted: Callable[..., Path]
) -> None:
    """Two overlays are as many as the kernel takes."""
    place = user.folder
    for number in "12":
        for name in ("up", "work"):
            (user.folder / (name + number)).mkdir()
        layers = (
            f"lowerdir={place},upperdir={user.folder}/up{number},workdir={user.folder}/work{number}"
        )
        place = mounted(f"data{number}", "-t", "overlay", "-o", layers, "none")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "sock"))
        server.listen()
        (place / "sock").chmod(0o777)
        (place / "file").write_text("here\n")
        os.mknod(place / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (place / "device").chmod(0o666)
        check = (
            f"cat {place}/file; test ! -S {place}/sock; echo $?; cat {place}/device; touch "
            f"{place}/file"
        )
        outcome = user.run(check)
    assert outcome["read_only"] == [str(place)]
    assert outcome["output_tail"].startswith(
        f"here\n0\ncat: {place}/device: Permission denied\ntouch: "
    )


def test_a_folder_that_may_only_be_passed_through(user: User, mounted: Callable[..., Path]) -> None:
    """As /home is with mode 711, where something is mounted below it."""
    outer = mounted("outer", "-t", "tmpfs", "-o", "mode=711", "none")
    inner = mounted("outer/inner", "-t", "tmpfs", "none")
    (outer / "work").mkdir()
    for place in (inner, outer / "work"):
        populate(user, place)
    before = tree(outer)
    for place in (inner, outer / "work"):
        argv = ["/bin/bash", "-c", DAMAGE, user.marker, str(place)]
        outcome = user.run("", argv=argv, cwd=outer / "work")
        assert (outcome["returncode"], outcome["output_tail"]) == (0, "")
    assert tree(outer) == before


def test_what_is_mounted_below_a_pseudo_file_system(
    user: User, mounted: Callable[..., Path]
) -> None:
    """As a home is below an automounter's folder."""
    outer = mounted("outer", "-t", "proc", "none")
    home = outer / "fs"
    subprocess.run(["mount", "-t", "tmpfs", "none", str(home)], check=True)
    try:
        populate(user, home)
        before = tree(home)
        outcome = user.run("", argv=["/bin/bash", "-c", DAMAGE, user.marker, str(home)])
        assert (outcome["returncode"], outcome["output_tail"]) == (0, "")
        assert tree(home) == before
    finally:
        subprocess.run(["umount", str(home)], check=True)


@pytest.mark.parametrize("mode", ["1777", "700"])
def test_what_is_mounted_below_a_read_only_folder(user: User, mode: str) -> None:
    """/sys is bound as a whole: each mount in it is made read-only with the flags that a user may
    not take off."""
    options = ["-t", "tmpfs", "-o", f"mode={mode},nosuid,nodev,noexec", "none", "/sys/kernel/debug"]
    if not IS_ROOT or subprocess.run(["mount", *options], check=False).returncode:
        pytest.skip("cannot mount anything here")
    try:
        outcome = user.run("touch /sys/kernel/debug/new")
    finally:
        subprocess.run(["umount", "/sys/kernel/debug"], check=True)
    closed = mode == "700" and user.number is not None
    assert ("Permission denied" if closed else "Read-only file system") in outcome["output_tail"]


def folder_of(user: User, name: str) -> Path:
    """Make a folder in the working directory."""
    folder = user.work / name
    folder.mkdir()
    user.own(folder)
    return folder


def test_only_results_come_out(user: User) -> None:
    out, shown, hidden = (folder_of(user, name) for name in ("out", "shown", "hidden"))
    for folder in (out, shown, hidden):
        (folder / "before").write_text("before\n")
    script = (
        "ls out hidden; cat shown/before; echo yes > out/file; echo no > other; mkdir "
        "out/sub; ln -s file out/link"
    )
    script += "; touch shown/x hidden/x; rm -f shown/before"
    outcome = user.run(script, show=[shown], hide=[hidden], results=out)
    assert outcome["output_tail"].startswith("hidden:\n\nout:\nbefore\n")
    assert outcome["output_tail"].count("Read-only file system") == 3
    assert {each.name: each.read_text() for each in out.iterdir()} == {
        "before": "before\n",
        "file": "yes\n",
    }
    assert [*shown.iterdir(), *hidden.iterdir()] == [shown / "before", hidden / "before"]
    assert not (user.work / "other").exists()


def test_a_covered_program_is_ours_by_every_path_and_only_inside(user: User) -> None:
    theirs, ours = user.work / "bin", user.folder / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        user.own(folder)
    for program, word in ((theirs / "tool", "theirs"), (ours / "tool", "ours")):
        program.write_text(f"#!/bin/sh\necho {word}\n")
        program.chmod(0o755)
    (theirs / "link").symlink_to("tool")
    script = (
        f"PATH={theirs}:$PATH tool; {theirs}/tool; {theirs}/link; (rm -f {theirs}/tool; echo "
        f"echo no > {theirs}/tool)"
    )
    script += " 2>/dev/null; bin/tool; exec /usr/bin/head -c 9 /usr/bin/id"
    cover = {
        theirs / "link": ours / "tool",
        Path("/usr/bin/id"): ours / "tool",
        Path("/run/no/tool"): ours / "tool",
    }
    outcome = user.run(script, show=[ours], cover=cover)
    assert (outcome["output_tail"], outcome["returncode"]) == ("ours\n" * 4 + "#!/bin/sh", 0)
    assert (theirs / "tool").read_text() == "#!/bin/sh\necho theirs\n"
    assert (ours / "tool").read_text() == "#!/bin/sh\necho ours\n"


def test_no_process_survives(user: User) -> None:
    outcome = user.run("""
        (setsid nohup bash -c 'sleep 1000; :' "$0" > /dev/null 2>&1 &)
        (trap '' TERM HUP; bash -c '(bash -c "sleep 1000; :" "$0" &)' "$0" &)
        nohup bash -c 'exec > /dev/null 2>&1 < /dev/null; sleep 1000; :' "$0" > /dev/null 2>&1 &
        sleep 0.2
        echo started""")
    assert (outcome["returncode"], outcome["stopped"], outcome["output_tail"]) == (
        0,
        None,
        "started\n",
    )


def test_time_is_limited_and_sigterm_comes_first(user: User) -> None:
    out = folder_of(user, "out")
    script = """trap 'echo bye > out/word; exit 3' TERM; while :; do sleep 0.1; done"""
    outcome = user.run(script, limits={"seconds": 0.5}, results=out)
    assert (outcome["stopped"], outcome["returncode"]) == ("time", 3)
    assert (out / "word").read_text() == "bye\n"


BUSY = "python3 -c 'import time\nwhile time.process_time() < 0.4: pass'"


@pytest.mark.parametrize(
    "script", [f"while :; do {BUSY}; done", f"{BUSY} & {BUSY}; wait; sleep 60"]
)
def test_time_is_that_of_all_processes_dead_or_alive(user: User, script: str) -> None:
    outcome = user.run(script, limits={"seconds": 0.7})
    assert outcome["stopped"] == "time"
    assert 0.6 < outcome["cpu_seconds"] <= outcome["spent_seconds"]


def test_waiting_counts_but_not_for_more_than_the_wall_has_it(user: User) -> None:
    outcome = user.run("sleep 60", limits={"seconds": 0.5})
    assert outcome["stopped"] == "time"
    assert outcome["cpu_seconds"] < 0.4 <= outcome["spent_seconds"]
    outcome = user.run("sleep 60", limits={"seconds": 60, "wall_seconds": 0.5})
    assert (outcome["stopped"], outcome["spent_seconds"] < 30) == ("time", True)


def test_what_looks_like_waiting_for_a_disk_is_none(user: User) -> None:
    """A loop of membarrier(2): uninterruptible nearly all of the time, at hardly any CPU time."""
    loop = (
        f"import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.syscall({MEMBARRIER}, 1, 0, 0)"
    )
    outcome = user.run(
        "", argv=[python(), "-c", loop, user.marker], limits={"seconds": 1, "wall_seconds": 30}
    )
    assert (outcome["stopped"], outcome["spent_seconds"] >= 1.0) == ("time", True)


def test_what_was_spent_is_written_where_it_is_asked_for(user: User) -> None:
    """That it sleeps is known later where others have the cores: it asks until it is told."""
    meter = user.work / "meter"
    ask = f"spent = lambda: struct.unpack('d', open({str(meter)!r}, 'rb').read())[0]"
    look = f"import struct, time\n{ask}\nwhile spent() <= 0.8: time.sleep(0.1)\nprint(spent())"
    outcome = user.run(f'{BUSY}; sleep 0.5; python3 -c "{look}"', meter=str(meter))
    assert 0.8 < float(outcome["output_tail"]) <= outcome["spent_seconds"]


@pytest.mark.skipif(
    not IS_ROOT or not os.access("/dev/fuse", os.W_OK), reason="mounts what does not answer"
)
def test_a_file_system_that_does_not_answer_keeps_nobody_waiting(user: User) -> None:
    """It is an empty folder, and whoever fails over that is told; a job that is in it is told at
    once."""
    silent = user.folder / "silent"
    silent.mkdir()
    with hung(silent) as inside:
        outcome = user.run(f"ls -A {silent}; echo the end", within=inside)
        assert outcome["output_tail"] == "the end\n"
        outcome = user.run(f"cat {silent}/data", within=inside)
        assert outcome["disturbed"] == f"the file system at {silent} does not answer"
        assert (
            user.run("true", within=inside, cwd=silent)["error"]
            == f"the file system at {silent} does not answer"
        )


def test_ignoring_sigterm_does_not_help(user: User) -> None:
    script = """trap '' TERM INT HUP; (trap '' TERM; setsid bash -c 'while :; do sleep 1; done' "$0" &)
        while :; do sleep 1; done"""
    outcome = user.run(script, limits={"seconds": 0.5})
    assert (outcome["stopped"], outcome["returncode"]) == ("time", -signal.SIGKILL)


def test_a_fork_bomb_is_stopped(user: User) -> None:
    script = """bomb() { for n in 1 2 3; do (bomb) & done; sleep 30; }; bomb"""
    assert user.run(script)["stopped"] == "processes"


def test_the_kernel_counts_processes_where_it_can(user: User) -> None:
    """It holds a fork bomb of root's on a busy machine, too, where the watch may come late."""
    if linux.release() < (6, 14):
        pytest.skip("this kernel has one pid_max for all PID namespaces")
    before = Path("/proc/sys/kernel/pid_max").read_text()
    script = """i=0; while [ $i -lt 900 ] && sleep 30 & do i=$((i + 1)); done 2>/dev/null"""
    outcome = user.run("cat /proc/sys/kernel/pid_max", limits={"processes": 50})
    assert outcome["output_tail"].split() == ["400"]
    assert Path("/proc/sys/kernel/pid_max").read_text() == before
    assert user.run(script, limits={"processes": 50, "seconds": 5})["stopped"] == "processes"


def test_threads_count_as_processes(user: User) -> None:
    program = (
        "import threading, time\nfor n in range(150): threading.Thread(target=time.sleep, "
        "args=(30,)).start()"
    )
    assert user.run("", argv=[python(), "-c", program, user.marker])["stopped"] == "processes"


def python() -> str:
    """A Python that every user may run."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if found is None:
        pytest.skip("no Python outside a home")
    return found


FILL = {
    "one process": "x = []\nwhile True: x.append(bytearray(1 << 20)); time.sleep(0.001)",
    "many": "[os.fork() for _ in range(3)]\nx = bytearray(60 << 20)\ntime.sleep(30)",
    "shared": "x = mmap.mmap(-1, 1 << 30)\nfor n in range(0, 1 << 30, 4096): x[n] = "
    "1\ntime.sleep(30)",
    "/dev/shm": "open('/dev/shm/x', 'wb').write(bytes(100 << 20)); x = bytearray(180 << 20); "
    "time.sleep(30)",
    "/tmp": "[open(f'/tmp/{n}', 'wb').write(bytes(50 << 20)) for n in '12']\nx = bytearray(200 << "
    "20); time.sleep(30)",
}


@pytest.mark.parametrize("how", FILL)
def test_memory_is_limited(user: User, how: str) -> None:
    program = "import mmap, os, time\n" + FILL[how]
    outcome = user.run("", argv=[python(), "-c", program, user.marker])
    assert outcome["stopped"] == "memory"
    assert outcome["peak_memory_bytes"] >= LIMITS["memory_bytes"]


@pytest.mark.skipif(not IS_ROOT, reason="only root can hide parts of /proc")
@pytest.mark.parametrize(
    ("stopped", "program", "limits"),
    [
        ("memory", FILL["many"], {}),
        ("processes", "[os.fork() for _ in range(3)]\ntime.sleep(30)", {"processes": 5}),
    ],
)
def test_limits_where_proc_is_a_container_s(
    user: User, stopped: str, program: str, limits: dict[str, int]
) -> None:
    argv = [python(), "-c", f"import os, time\n{program}", user.marker]
    outcome = user.run("", argv=argv, within=MASKED, limits=limits)
    assert outcome["stopped"] == stopped


@pytest.mark.parametrize(
    ("size", "returncode", "said"), [("8 << 30", 0, ""), ("1 << 42", 1, "Cannot allocate memory")]
)
def test_what_is_not_touched_takes_no_memory_but_is_not_without_bounds(
    user: User, size: str, returncode: int, said: str
) -> None:
    outcome = user.run(
        "",
        argv=[python(), "-c", f"import mmap\nmmap.mmap(-1, {size}, mmap.MAP_PRIVATE)", user.marker],
    )
    assert (outcome["stopped"], outcome["returncode"]) == (None, returncode)
    assert said in outcome["output_tail"]


def test_address_space_and_shared_pages_are_not_memory(user: User) -> None:
    """A stand-in GPU's memory is address space without access; forked loaders share their parent's
    pages."""
    program = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, ctypes.c_size_t(80 << 30), 0, 0x4022, -1, 0) != ctypes.c_void_p(-1).value
x = bytearray(b'1') * (120 << 20)
for n in range(6):
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)
for n in range(6):
    os.wait()
"""
    outcome = user.run("", argv=[python(), "-c", program, user.marker])
    assert (outcome["returncode"], outcome["stopped"], outcome["output_tail"]) == (0, None, "")


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "."])
def test_files_are_limited(user: User, place: str) -> None:
    script = f"for n in 1 2 3; do head -c {60 * MIB} /dev/zero > {place}/$n || exit 5; done"
    outcome = user.run(script)
    assert (outcome["returncode"], outcome["stopped"]) == (5, None)
    assert "No space left on device" in outcome["output_tail"]


def test_a_file_takes_what_is_written_to_it_and_may_end_far_behind(user: User) -> None:
    outcome = user.run(
        "echo first > x; truncate -s 6T x && echo last >> x && stat -c %s x && head -n 1 x"
    )
    assert outcome["output_tail"].splitlines() == [str((6 << 40) + 5), "first"]


def test_the_network_is_out_of_reach_and_loopback_works(user: User) -> None:
    program = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
except ConnectionRefusedError:
    print("refused")
ours = socket.create_server(("127.0.0.1", 0))
socket.create_connection(ours.getsockname(), timeout=5)
print("connected")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print(error.strerror)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        outcome = user.run("", argv=[python(), "-c", program, port, user.marker])
    assert outcome["output_tail"].splitlines() == ["refused", "connected", "Network is unreachable"]


@pytest.mark.parametrize("name", ["work/bound.sock", "home/sub/bound.sock"])
def test_sockets_of_programs_outside_cannot_be_found(user: User, name: str) -> None:
    path = user.folder / name
    path.parent.mkdir(exist_ok=True)
    path.with_name("file").write_text("here")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o777)
        outcome = user.run(f"cat {path.parent}/file; ls {path.parent}; test ! -e {path}")
    assert (outcome["returncode"], outcome["output_tail"]) == (0, "herefile\n")


def test_what_is_left_of_devices_and_services(user: User) -> None:
    devices = set(user.run("cd /dev; printf '%s\\n' *")["output_tail"].split())
    assert devices <= {
        *new_root.DEVICES,
        "fd",
        "ptmx",
        "pts",
        "shm",
        "stdin",
        "stdout",
        "stderr",
        "tty",
    }
    assert (
        user.run("find /run -type s -o -type p | grep -v -e nscd -e nslcd -e userdb")["output_tail"]
        == ""
    )
    assert (
        user.run("echo x > /dev/null; head -c 4 /dev/zero | wc -c; exec 3<> /dev/ptmx")[
            "output_tail"
        ]
        == "4\n"
    )


@pytest.mark.skipif(not IS_ROOT, reason="only root has commands for it")
def test_root_commands_no_name_service(user: User) -> None:
    service = Path("/run/nscd")
    missing = not service.exists()
    service.mkdir(exist_ok=True)
    try:
        shown = user.run("ls -d /run/nscd 2>&1")["returncode"] == 0
    finally:
        if missing:
            service.rmdir()
    assert shown == (user.number is not None)


def test_a_terminal_is_missing_as_in_a_batch_job(user: User) -> None:
    said = user.run("echo x > /dev/tty")["output_tail"]
    assert said.endswith("/dev/tty: No such device or address\n")


MASKED = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc/irq; exec "$@"', "sh"]
"""A container mounts over parts of /proc; then the kernel refuses a new one in a user namespace."""


@pytest.mark.parametrize("within", [[], MASKED], ids=["", "in a container"])
def test_what_is_bound_from_outside_is_read_only(user: User, within: Sequence[str]) -> None:
    """Modes, owners, times and attributes are a mount's to keep, whatever rights a process has over
    files."""
    if within and not IS_ROOT:
        pytest.skip("only root can hide parts of /proc")

    def writable(mountinfo: str) -> dict[str, str]:
        lines = [line.split() for line in mountinfo.splitlines()]
        return {line[4]: line[2] for line in lines if "rw" in line[5].split(",")}

    outcome = user.run("", argv=["cat", "/proc/self/mountinfo"], within=within, containers=True)
    outside = writable(
        subprocess.check_output([*within, "cat", "/proc/self/mountinfo"], text=True)
    ).values()
    inside = writable(outcome["output_head"])
    assert "/" in inside
    assert {point for point, device in inside.items() if device in {*outside}} == set()


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs none /mnt",
        "umount /proc",
        "umount /tmp",
        "mount -o remount,bind,rw /sys",
        "mknod disk b 254 0",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo b > /proc/sysrq-trigger",
        "kill -9 1; ! kill -0 1",
        "ls /proc/1/root/",
        "hostname other",
        "ulimit -c unlimited",
        "unshare --user --map-root-user mount -o remount,bind,rw /sys",
        "unshare --user --map-root-user --mount umount /tmp",
    ],
)
def test_privileges_are_gone(user: User, attempt: str) -> None:
    assert user.run(f"{attempt}")["returncode"] != 0


def test_what_a_user_may_have_is_not_used_up(user: User) -> None:
    """Watches of files are counted for a user, inside and outside together; root could have been
    any user."""
    become = f"os.getuid() or os.setuid({NOBODY})"
    program = (
        f"import ctypes, os\n{become}\nlibc, n = ctypes.CDLL(None), 0\nwhile "
        "libc.inotify_init() >= 0: n += 1"
    )
    outcome = user.run("", argv=[python(), "-c", f"{program}\nprint(n)"])
    most = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    assert 0 < int(outcome["output_tail"]) < most


def test_root_s_rights_are_those_of_a_namespace_of_its_own(user: User) -> None:
    script = (
        "readlink /proc/self/ns/user; cat /proc/self/uid_map; touch a; chown 1234:55 a; stat "
        "-c %u:%g a"
    )
    space, *mapped, owner = user.run(script)["output_tail"].splitlines()
    assert space != str(Path("/proc/self/ns/user").readlink())
    if IS_ROOT and user.number is None:
        outside = Path("/proc/self/uid_map").read_text().splitlines()
        assert [line.split()[0::2] for line in mapped] == [line.split()[0::2] for line in outside]
        assert owner == "1234:55"


def test_who_and_where_look_the_same(user: User) -> None:
    (user.work / "own").touch()
    user.own(user.work / "own")
    outcome = user.run("id -u; id -g; id -un; pwd; stat -c %u:%g own; umask; hostname")
    number = os.getuid() if user.number is None else user.number
    group = os.getgid() if user.number is None else user.number
    expected = [
        str(number),
        str(group),
        "nobody" if user.number else subprocess.getoutput("id -un"),
        str(user.work),
    ]
    umask = subprocess.getoutput("umask")
    assert outcome["output_tail"].splitlines() == [
        *expected,
        f"{number}:{group}",
        umask,
        socket.gethostname(),
    ]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -SEGV $$", -11),
        ("kill -TERM $$", -15),
        ("no-such-command-here", 127),
    ],
)
def test_exit_codes_and_signals_are_passed_on(user: User, script: str, code: int) -> None:
    outcome = user.run(script)
    assert (outcome["returncode"], outcome["stopped"]) == (code, None)


@pytest.mark.parametrize(
    ("script", "disturbed"),
    [
        ("exit 1", None),
        ("kill -SEGV $$", None),
        ("kill -KILL $$", "SIGKILL ended it"),
        ("bash -c 'kill -TERM $$'; exit $?", "SIGTERM ended it"),
    ],
)
def test_an_end_that_may_have_come_from_outside_is_said(
    user: User, script: str, disturbed: str | None
) -> None:
    assert user.run(script)["disturbed"] == disturbed


def test_results_that_find_no_room_are_said_to_be_lost(
    user: User, mounted: Callable[..., Path]
) -> None:
    out = mounted("out", "-t", "tmpfs", "-o", "size=64k,mode=777", "none")
    outcome = user.run(f"head -c 1M /dev/zero > {out}/1.json.gz", results=out)
    assert outcome == {
        "error": "what the dry run found could not be written to its temporary folder: No space "
        "left on device"
    }


@pytest.mark.parametrize(
    ("argv", "settings", "code", "words"),
    [
        (["no-such-command-here"], {}, 127, "No such file"),
        (["/etc/passwd"], {}, 126, "Permission denied"),
        (["true"], {"cwd": "/no/such/folder"}, 127, "/no/such/folder"),
    ],
)
def test_what_cannot_be_started(
    user: User, argv: Sequence[str], settings: Any, code: int, words: str
) -> None:
    outcome = user.run("", argv=argv, **settings)
    assert outcome["returncode"] == code
    assert words in outcome["output_tail"]


def test_only_the_end_of_the_output_is_held(user: User) -> None:
    outcome = user.run("yes | head -c 300000000; echo; echo end >&2")
    assert len(outcome["output_tail"]) == 16384
    assert outcome["output_tail"].endswith("y\n\nend\n")


def test_stdin_is_empty(user: User) -> None:
    assert user.run("cat; echo done")["output_tail"] == "done\n"


def test_the_command_starts_clean(user: User) -> None:
    """No descriptor of ours, no blocked or ignored signal, no way to gain a privilege."""
    script = (
        "ls /proc/self/fd; grep -E '^(SigBlk|SigIgn|CapInh|CapAmb|NoNewPrivs)' "
        "/proc/self/status | cut -f2"
    )
    found = user.run(script)["output_tail"].split()
    # signals 32 and 33 are glibc's own; its posix_spawn, by which make starts us, ignores them
    glibcs_own = 0b11 << 31
    assert [int(word, 16) & ~glibcs_own for word in found if len(word) == 16] == [0] * 4
    assert sorted(word for word in found if len(word) < 16) == [
        "0",
        "1",
        "1",
        "2",
        "3",
    ]  # 3 is the folder that ls reads


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


STAYER = """(trap '' TERM INT; setsid bash -c 'sleep 1000; :' "$0" &) ; sleep 1000"""


@contextmanager
def started(user: User, **settings: Any) -> "Iterator[subprocess.Popen[str]]":
    """Start a script that does not end, and go on when it runs; a test that fails does not wait for
    it."""
    with user.start(STAYER, **settings) as process:
        try:
            wait_until(
                lambda: any(line.startswith("bash\0-c\0sleep 1000") for line in user.alive())
            )
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ending_us_ends_everything(user: User, number: signal.Signals) -> None:
    with started(user, limits={"seconds": 10 * HANG_SECONDS}) as process:
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == -number
    if number == signal.SIGKILL:  # nobody is left to wait for the rest
        wait_until(lambda: user.alive() == [])
    assert user.alive() == []


def test_ending_us_leaves_no_layers_on_disk(user: User) -> None:
    with started(user, old_kernel=True) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == -signal.SIGTERM
    assert not list(Path("/var/tmp").glob("xmem-layers-*"))


def test_a_signal_that_we_ignore_does_not_end_it(user: User) -> None:
    """Under nohup."""
    with started(user, within=["nohup"], limits={"seconds": 3}) as process:
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        assert json.load(process.stdout)["stopped"] == "time"


def test_what_is_missing_is_named(user: User) -> None:
    """In a user namespace whose own limit on user namespaces is 0, with no capability."""
    inner = (
        "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --inh-caps -all "
        '--bounding-set -all "$@"'
    )
    request = {"argv": ["true"], "cwd": "/", "environ": {}, "limits": LIMITS, "user": None}
    request |= {"show": [], "hide": [], "results": None, "cover": {}, "meter": None}
    process = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            inner,
            "sh",
            sys.executable,
            str(DRIVER),
        ],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "user.max_user_namespaces is 0" in json.loads(process.stdout)["error"]
