"""Is there a control group that a dry run can have for itself, in which the kernel holds it to its limits?

There is where the nearest group above this process that hands out memory and pids is ours to divide: for root, and for
a user whose session is in a subtree that systemd has delegated (a terminal under `systemd --user`). It is not where
sshd starts a session: that group is root's. Then what `first_process` limits and `watch` counts is what holds.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, "Delegation Containment" and "No Internal Process
Constraint": a new group beside this process's own, below one that we may write to, is one that we may move to.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xmem_slurm.sandbox import mounts

_PREFIX = "xmem-slurm-"
_PERIOD = 100_000
"""Microseconds: cpu.max is said as so many of so many."""
_EMPTY_SECONDS = 1.0
"""How long the kernel may take to see that the last process of a group is gone."""


def divisible() -> Path | None:
    """Return the group in which one for a dry run can be made, or None."""
    mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return above(mountinfo, Path("/proc/self/cgroup").read_text(errors="surrogateescape"))


def told() -> str:
    """Say in one line what holds dry runs to their limits on this machine, for who runs this."""
    group = divisible()
    if group is None:
        return (
            "dry runs here are held to their limits by resource limits, a filter of system calls and a watch: there is "
            "no control group (v2) with memory and pids that this user may divide"
        )
    cpus = "" if "cpu" in _given(group) else "; CPUs by affinity, as cpu is not handed out there"
    return f"dry runs here are held to their limits by a control group of their own, in {group}{cpus}"


def above(mountinfo: str, own: str) -> Path | None:
    """Return the same from the texts of a process's mountinfo (proc_pid_mountinfo(5)) and cgroup (cgroups(7))."""
    top = next((each.point for each in mounts.visible(mountinfo) if each.kind == "cgroup2"), None)
    place = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if top is None or place is None or ".." in place:  # it is outside of what is mounted here
        return None
    here = top / place.lstrip("/")
    return next((group for group in (here, *here.parents) if group.is_relative_to(top) and _may_divide(group)), None)


def _may_divide(group: Path) -> bool:
    return {"memory", "pids"} <= _given(group) and all(
        os.access(each, os.W_OK) for each in (group, group / "cgroup.procs")
    )


def _given(group: Path) -> set[str]:
    """Return what a group hands out to those in it."""
    try:
        return {*(group / "cgroup.subtree_control").read_text().split()}
    except OSError:
        return set()


@contextmanager
def own(memory_bytes: int, processes: int, cpus: int) -> Iterator[Path | None]:
    """Give a group with these limits and no process in it, None where there can be none; it goes at the end.

    What a killed dry run left goes first.
    """
    parent = divisible()
    if parent is None:
        yield None
        return
    for left in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(_PREFIX)).exists():
            with suppress(OSError):  # another user's, or its last process is just ending
                left.rmdir()
    group = parent / f"{_PREFIX}{os.getpid()}"
    try:
        group.mkdir()
        settings = {
            "memory.max": str(memory_bytes),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "pids.max": str(processes),
            "cpu.max": f"{cpus * _PERIOD} {_PERIOD}",
        }
        for name, value in settings.items():
            with suppress(FileNotFoundError):  # no swap here, or CPU time is not handed out
                (group / name).write_text(value)
    except OSError:
        _remove(group)
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
