"""Is there a control group that a dry run can have for itself, in which the kernel holds it to its
limits?

There is where the nearest group above this process that hands out memory and pids is ours to
divide: for root, and for a user whose session is in a subtree that systemd has delegated (a
terminal under `systemd --user`). It is not where sshd starts a session: that group is root's. There
the user's own systemd, where one runs, is asked to take the dry run into a scope of its own. Else
what `first_process` limits and `watch` counts is what holds.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, "Delegation Containment" and "No
Internal Process Constraint": a new group beside this process's own, below one that we may write to,
is one that we may move to.
"""

import mmap
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from xmem_slurm.sandbox import mounts

_PREFIX = "xmem-slurm-"
_PERIOD = 100_000
"""Microseconds: cpu.max is said as so many of so many."""
_WANTED = {"cpu", "memory", "pids"}
_RUNTIME = Path("/run/user")
"""Where a user's services have their sockets (XDG_RUNTIME_DIR), known to a job without a login
session, too."""
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The machine's own (PROC_PID_INIT_INO, include/linux/proc_ns.h): elsewhere our number is another
process's."""
MANAGER_SECONDS = 1.0
"""How long the user's systemd may take to answer; where it does not, the dry run goes on without
it."""
_EMPTY_SECONDS = 1.0
"""How long the kernel may take to see that the last process of a group is gone."""

_CROWDED = 0.1
"""Where the files that a group reads are left less of its room than this..."""
_CROWDED_SECONDS = 30.0
"""...and it reads as much as all its room once more within this time (systemd-oomd's,
oomd.conf(5)), it thrashes."""


def divisible() -> Path | None:
    """Return the group in which one for a dry run can be made, or None."""
    return above(*_said_of_us())


def _said_of_us() -> tuple[str, str]:
    mountinfo, own_cgroup = Path("/proc/self/mountinfo"), Path("/proc/self/cgroup")
    return mountinfo.read_text(errors="surrogateescape"), own_cgroup.read_text(
        errors="surrogateescape"
    )


def told() -> str:
    """Say in one line what holds dry runs to their limits on this machine, for who runs this."""
    group = divisible()
    if group is None and _manager("org.freedesktop.DBus.Peer", "Ping"):
        return (
            "dry runs here are held to their limits by a control group of their own, from this "
            "user's systemd"
        )
    if group is None:
        return (
            "dry runs here are held to their limits by resource limits, a filter of system calls "
            "and a watch: there is "
            "no control group (v2) with memory and pids that this user may divide. Memory that no "
            "process can be asked "
            "about is refused (huge pages, memory files) or counted as what it can be at most "
            "(sockets, mappings)"
        )
    cpus = ""
    if "cpu" not in _controllers_of(group):
        cpus = "; CPUs by affinity, as cpu is not handed out there"
    return (
        f"dry runs here are held to their limits by a control group of their own, in {group}{cpus}"
    )


def above(mountinfo: str, cgroup_text: str) -> Path | None:
    """Return the same from the texts of a process's mountinfo (proc_pid_mountinfo(5)) and cgroup
    (cgroups(7)).
    """
    groups = _groups(mountinfo, cgroup_text)
    return next((group for group in groups if _may_divide(group)), None)


def _groups(mountinfo: str, cgroup_text: str) -> Sequence[Path]:
    """Return the group that a process is in and all above it; none where it is outside of what is
    mounted here.
    """
    top = next(
        (mount.point for mount in mounts.visible(mountinfo) if mount.kind == "cgroup2"), None
    )
    place = next((line[3:] for line in cgroup_text.splitlines() if line.startswith("0::")), None)
    if top is None or place is None or ".." in place:
        return ()
    own_group = top / place.lstrip("/")
    return [group for group in (own_group, *own_group.parents) if group.is_relative_to(top)]


def _may_divide(group: Path) -> bool:
    return {"memory", "pids"} <= _controllers_of(group) and all(
        os.access(path, os.W_OK) for path in (group, group / "cgroup.procs")
    )


def _controllers_of(group: Path) -> set[str]:
    """Return what a group hands out to those in it."""
    try:
        return {*(group / "cgroup.subtree_control").read_text().split()}
    except OSError:
        return set()


@contextmanager
def own(memory_bytes: int, processes: int, cpus: int) -> Iterator[Path | None]:
    """Give a group with these limits and no process in it, None where there can be none; it goes at
    the end.

    What a killed dry run left goes first.
    """
    parent = divisible()
    if parent is None:
        yield None
        return
    for leftover in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", leftover.name.removeprefix(_PREFIX)).exists():
            with suppress(OSError):  # another user's, or its last process is just ending
                leftover.rmdir()
    group = parent / f"{_PREFIX}{os.getpid()}"
    if not _make(group, memory_bytes, processes, cpus):
        yield None
        return
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    until = time.monotonic() + _EMPTY_SECONDS
    while group.exists() and time.monotonic() < until:
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.01)


def _make(group: Path, memory_bytes: int, processes: int, cpus: int) -> bool:
    """Make a group with these limits; whether there is one now."""
    settings = {
        "memory.max": str(memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(processes),
        "cpu.max": f"{cpus * _PERIOD} {_PERIOD}",
    }
    try:
        group.mkdir()
        for name, value in settings.items():
            with suppress(FileNotFoundError):  # no swap here, or CPU time is not handed out
                (group / name).write_text(value)
    except OSError:
        _remove(group)
        return False
    return True


def scope(memory_bytes: int, processes: int, cpus: int) -> Path | None:
    """Have the user's systemd take this process into a scope, and return a group in it with these
    limits.

    Only systemd may move a process there from a login session. The scope goes when no process is in
    it; None where there is none within a second.
    """
    unit, until = f"{_PREFIX}{os.getpid()}.scope", time.monotonic() + MANAGER_SECONDS
    pids = ["PIDs", "au", "1", str(os.getpid())]
    properties = ["3", *pids, "Delegate", "b", "true", "CollectMode", "s", "inactive-or-failed"]
    call = ["StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties, "0"]
    if not _manager("org.freedesktop.systemd1.Manager", *call):
        return None
    while not (groups := _groups(*_said_of_us())) or groups[0].name != unit:
        if time.monotonic() > until:
            return None
        time.sleep(0.01)
    scope_group = groups[0]
    try:
        (scope_group / "keeper").mkdir()
        # A group that is divided has no process itself.
        (scope_group / "keeper" / "cgroup.procs").write_text("0")
        controllers = (scope_group / "cgroup.controllers").read_text().split()
        (scope_group / "cgroup.subtree_control").write_text(
            " ".join(f"+{controller}" for controller in _WANTED & {*controllers})
        )
    except OSError:
        return None
    group = scope_group / "run"
    return (
        group if _may_divide(scope_group) and _make(group, memory_bytes, processes, cpus) else None
    )


class Opened:
    """The command's control group, opened where its files are there; nothing, where it has none."""

    def __init__(self, folder: Path | None) -> None:
        names = (
            ("cgroup.procs", os.O_WRONLY),
            ("memory.events", os.O_RDONLY),
            ("memory.stat", os.O_RDONLY),
        )
        self._files = (
            None if folder is None else [os.open(folder / name, flags) for name, flags in names]
        )
        self._room = 0 if folder is None else int((folder / "memory.max").read_text())
        self._since = time.monotonic(), 0
        """When, and with how many pages that were read again, the time began in which it may come
        to thrash."""

    def is_there(self) -> bool:
        """Whether the kernel counts all memory of the command's itself."""
        return self._files is not None

    def join(self) -> None:
        """Take the calling process into it."""
        if self._files is not None:
            with suppress(OSError):  # then it is held as where there is none
                os.write(self._files[0], b"0")

    def was_killed(self) -> bool:
        """Whether it went beyond its memory, and the kernel killed all of it."""
        return self._files is not None and _counts(self._files[1]).get("oom_kill", 0) > 0

    def thrashes(self) -> bool:
        """Whether it does little but read its own program: the kernel kills nothing while there is
        text that can go.
        """
        if self._files is None:
            return False
        now, figures = time.monotonic(), _counts(self._files[2])
        # The latter is its name before Linux 5.9.
        pages = figures.get("workingset_refault_file", figures.get("workingset_refault", 0))
        is_crowded = figures["active_file"] + figures["inactive_file"] < _CROWDED * self._room
        if not is_crowded or now - self._since[0] > _CROWDED_SECONDS:
            self._since = now, pages
        return (pages - self._since[1]) * mmap.PAGESIZE > self._room


def _counts(file: int) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in map(str.split, os.pread(file, 8192, 0).decode().splitlines())
    }


def _manager(interface: str, *call: str) -> bool:
    """Call the user's systemd by its bus, if there is one; whether it answered well within a
    second.
    """
    runtime = _RUNTIME / str(os.geteuid())
    environ = {"PATH": os.defpath, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    to = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", interface, *call]
    try:
        if (
            str(Path("/proc/self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE
            or not (runtime / "bus").is_socket()
        ):
            return False
        busctl = subprocess.run(
            ["busctl", "--user", "--quiet", "call", *to],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MANAGER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return busctl.returncode == 0
