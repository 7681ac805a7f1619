"""What a control group (v2) holds a dry run to by itself: with no watch that looks and no system
call that is refused.

As root every test runs twice, as root and as nobody, each in a subtree that is theirs to divide, as
systemd delegates one to a user. `make test-cgroup2` runs this under a Linux that has such groups.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sandbox import hostile_probes
from tests.integration.sandbox.test_sandbox import IS_ROOT, MIB, User, user, wait_until
from xmem_slurm.sandbox import mounts

__all__ = ["user"]

SYSTEM_PYTHON = "/usr/bin/python3"
REPOSITORY = Path(__file__).parents[3]
TOLD = "from xmem_slurm.sandbox import cgroup; cgroup.MANAGER_SECONDS = 60.0; print(cgroup.told())"
MEMORY = 96 * MIB
PROCESSES = 20


@pytest.fixture
def subtree(user: User) -> Iterator[Path]:
    """Make a group that the user may divide; who enters is in `session` below it."""
    seen = mounts.visible(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    top = next((each.point for each in seen if each.kind == "cgroup2"), None)
    if (
        not IS_ROOT
        or top is None
        or not {"cpu", "memory", "pids"} <= {*(top / "cgroup.controllers").read_text().split()}
    ):
        pytest.skip(
            "only root, where memory, pids and cpu are in control groups v2, can make a subtree of "
            "them"
        )
    (top / "cgroup.subtree_control").write_text("+cpu +memory +pids")
    folder = top / user.folder.name
    (folder / "session").mkdir(parents=True)
    (folder / "cgroup.subtree_control").write_text("+cpu +memory +pids")
    for each in (folder, folder / "session"):
        for name in (".", "cgroup.procs", "cgroup.subtree_control"):
            user.own(each / name)
    yield folder
    wait_until(lambda: "populated 0" in (folder / "cgroup.events").read_text())
    for each in (*folder.glob("*/"), folder):
        each.rmdir()


def entered(subtree: Path) -> list[str]:
    return ["/bin/sh", "-c", f'echo $$ > {subtree}/session/cgroup.procs && exec "$@"', "sh"]


def run(user: User, subtree: Path, code: str, **settings: Any) -> dict[str, Any]:
    """Run a program that only its control group holds; that is gone at the end."""
    argv = [SYSTEM_PYTHON, "-c", f"import ctypes, mmap, os, sys, time\n{code}", user.marker]
    limits = {
        "memory_bytes": MEMORY,
        "processes": PROCESSES,
        "scratch_bytes": 1024 * MIB,
        "cpus": 1,
    }
    outcome = user.run(
        "", argv=argv, within=entered(subtree), limits=limits, **{"unwatched": True} | settings
    )
    assert [each.name for each in subtree.glob("*/")] == ["session"]
    return outcome


NESTED = """
user, group = os.getuid() or 1, os.getgid() or 1  # root is mapped by a privilege that is gone
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    libc = ctypes.CDLL(None)
    assert libc.unshare(0x10020000) == 0
    os.write(ready[1], b'!'); os.read(go[0], 1)
    os.setgid(0); os.setuid(0)
    assert libc.mount(b'none', b'/mnt', b'tmpfs', 0, None) == 0
    open('/mnt/x', 'wb').write(bytes(64 << 20)); open('/mnt/y', 'wb').write(bytes(64 << 20))
    os._exit(0)
os.read(ready[0], 1)
for name, what in {'setgroups': 'deny', 'uid_map': f'0 {user} 1', 'gid_map': f'0 {group} 1'}.items():
    with open(f'/proc/{child}/{name}', 'w') as file: file.write(what)
os.write(go[1], b'!')
os.waitpid(child, 0)
"""
ROUTES = {
    "its own": "x = bytearray(512 << 20)",
    "memory files that are held open": "held = [os.memfd_create(str(n)) for n in range(9)]\n"
    "for each in held: os.write(each, bytes(40 << 20))",
    "System V's": "libc = ctypes.CDLL(None)\nlibc.shmat.restype = ctypes.c_void_p\n"
    "for n in range(9): ctypes.memset(libc.shmat(libc.shmget(0, 40 << 20, 0o1600), None, 0), 1, 40 "
    "<< 20)",
    "a tmpfs of a namespace of its own": NESTED,
    "/dev/shm": "for n in range(9): open(f'/dev/shm/{n}', 'wb').write(bytes(40 << 20))",
    "deleted files": "for n in range(9):\n f = os.open('x', os.O_RDWR | os.O_CREAT); "
    "os.unlink('x')\n"
    " os.write(f, bytes(40 << 20))",
    "page tables": "m = mmap.mmap(-1, 1 << 38, 0x4022, mmap.PROT_READ)\n"
    "m.madvise(15)\nfor place in range(0, 1 << 38, 1 << 21): m[place]",
    "a child's": "if os.fork() == 0: x = bytearray(512 << 20)",
}


THRASHES = "page tables"
"""Where nothing else can go, the kernel takes the program's text, again and again, and ends
nothing."""
FILES = {"/dev/shm", "deleted files"}


@pytest.mark.parametrize("route", ROUTES)
def test_memory_by_every_route_ends_all_of_it(user: User, subtree: Path, route: str) -> None:
    if route in FILES and user.number is not None and not mounts.tmpfs_keeps_marks():
        pytest.skip("what a user's dry run writes is on a disk under this kernel")
    code = f"{ROUTES[route]}\ntime.sleep(30)\nprint('it went on')"
    outcome = run(user, subtree, code, unwatched=route != THRASHES)
    assert (outcome["stopped"], outcome["returncode"], outcome["output_tail"]) == (
        "memory",
        -signal.SIGKILL,
        "",
    )
    assert outcome["peak_memory_bytes"] >= MEMORY


def test_files_that_are_read_are_not_its_memory(user: User, subtree: Path) -> None:
    """They are in the group's figure, and go when there is no more room."""
    file = user.work / "large"
    file.write_bytes(bytes(3 * MEMORY))
    outcome = run(
        user,
        subtree,
        "with open('large', 'rb') as file:\n while file.read(1 << 20): pass",
        unwatched=False,
    )
    assert (outcome["stopped"], outcome["returncode"], outcome["output_tail"]) == (None, 0, "")


BURST = """
made = 0
try:
    while made < 500:
        if os.fork() == 0: time.sleep(300)
        made += 1
except BlockingIOError: pass
"""


def test_processes_are_refused_at_twice_the_limit(user: User, subtree: Path) -> None:
    """At once, and the watch, where it looks, sees the limit itself passed."""
    assert run(user, subtree, f"{BURST}print(made + 1)")["output_tail"] == f"{2 * PROCESSES}\n"
    assert run(user, subtree, f"{BURST}time.sleep(300)", unwatched=False)["stopped"] == "processes"


def test_cpu_time_is_that_of_as_many_cpus_as_allowed(user: User, subtree: Path) -> None:
    """Whatever it makes of its affinity."""
    code = """
os.sched_setaffinity(0, range(os.cpu_count()))
begun = time.monotonic()
for n in range(2):
    if os.fork() == 0:
        while time.monotonic() < begun + 3: pass
        os._exit(0)
for n in range(2): os.wait()
spent = os.times()
print((spent.children_user + spent.children_system) / (time.monotonic() - begun))
with open('/sys/fs/cgroup' + open('/proc/self/cgroup').read().strip()[3:] + '/cpu.stat') as file:
    print(dict(line.split() for line in file)['nr_throttled'])
"""
    share, throttled = run(user, subtree, code)["output_tail"].split()
    assert float(share) < 1.2
    if (os.cpu_count() or 1) > 1:
        assert int(throttled) > 0


def test_no_attempt_on_the_machine_or_its_group_works(user: User, subtree: Path) -> None:
    shutil.copy(hostile_probes.__file__, user.work)
    outcome = user.run(
        "", argv=[SYSTEM_PYTHON, "hostile_probes.py"], within=entered(subtree), limits={"cpus": 1}
    )
    tried = json.loads(outcome["output_tail"].splitlines()[-1])
    assert {name: said for name, said in tried.items() if said != "held"} == {}
    assert "its_own_control_group" in tried


def test_what_a_killed_dry_run_left_goes_with_the_next(user: User, subtree: Path) -> None:
    argv = ["/bin/sleep", "300"]
    with user.start("", argv=argv, within=entered(subtree)) as process:
        group = subtree / f"xmem-slurm-{process.pid}"
        wait_until(
            lambda: group.exists() and "populated 1" in (group / "cgroup.events").read_text()
        )
        process.kill()
    assert group.exists()
    wait_until(lambda: "populated 0" in (group / "cgroup.events").read_text())
    run(user, subtree, "")


def test_a_user_s_own_systemd_takes_it_into_a_group(user: User) -> None:
    """Where the login session is in a group of root's, as that of sshd is."""
    if user.number is None or not Path(f"/run/user/{user.number}/bus").is_socket():
        pytest.skip("no systemd runs for nobody here: `loginctl enable-linger nobody` starts one")
    code = (
        "import os; print(os.getpid(), open('/proc/self/cgroup').read()); x = bytearray(512 << "
        "20); print('it went on')"
    )
    limits = {
        "memory_bytes": MEMORY,
        "processes": PROCESSES,
        "scratch_bytes": 1024 * MIB,
        "cpus": 1,
    }
    outcome = user.run(
        "", argv=[SYSTEM_PYTHON, "-uc", code, user.marker], limits=limits, unwatched=True
    )
    manager = (
        f"/user.slice/user-{user.number}.slice/user@{user.number}.service/app.slice/xmem-slurm-"
    )
    assert manager in outcome["output_tail"]
    assert (outcome["stopped"], "it went on" in outcome["output_tail"]) == ("memory", False)
    wait_until(lambda: not list(Path("/sys/fs/cgroup/user.slice").rglob("xmem-slurm-*")))
    told = subprocess.run(
        [
            "setpriv",
            f"--reuid={user.number}",
            f"--regid={user.number}",
            "--clear-groups",
            SYSTEM_PYTHON,
            "-c",
            TOLD,
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    assert "from this user's systemd" in told.stdout
