"""The Linux system calls that the sandbox needs and Python 3.11 does not offer.

Each function is one call and raises OSError with the call's errno. Numbers are from the kernel's
headers (include/uapi/linux/{sched,mount,prctl,capability,ioprio,keyctl}.h, v6.18); they are the
same on x86-64 and aarch64 but for ioprio_set and keyctl.
"""

import ctypes
import os
import platform
import re
import resource
import socket
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_THP_DISABLE = 41

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_FOWNER = 3
CAP_FSETID = 4
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SYS_ADMIN = 21

_MNT_DETACH = 2
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_OWN_PID_MAX = (6, 14)
_RESERVED_PIDS = 300
_MOST_SOCKET_BYTES = 4 << 20
_IOPRIO_WHO_PROCESS = 1
_SESSION_NICE = 5
_IOPRIO_LOWEST_BEST_EFFORT = (2 << 13) | 7

StrPath = str | os.PathLike[str]

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)


def unshare(flags: int) -> None:
    """Move this process (for CLONE_NEWPID: its children) into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def join(namespace: int) -> None:
    """Move this process into the namespace that is open as a descriptor (os.setns is of Python
    3.12).
    """
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(0)), "setns")


def mount(
    source: StrPath, target: StrPath, kind: str | None, flags: int, options: str = ""
) -> None:
    """Mount `source` on `target`."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(options) or None,
    )
    _check(result, str(target))


def detach(target: StrPath) -> None:
    """Unmount `target` and everything below it, as soon as nothing uses it."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)), str(target))


def pivot_root(new_root: StrPath, put_old: StrPath) -> None:
    """Make `new_root` the root of this mount namespace and the old one appear at `put_old`."""
    _check(_libc.pivot_root(os.fsencode(new_root), os.fsencode(put_old)), str(new_root))


def prctl(option: int, value: int, second_value: int = 0) -> None:
    """Set one attribute of this process."""
    arguments = [ctypes.c_ulong(word) for word in (value, second_value, 0, 0)]
    _check(_libc.prctl(ctypes.c_int(option), *arguments), "prctl")


def keep_capabilities(kept: frozenset[int]) -> None:
    """Take every capability but `kept` out of the bounding set: no later exec can gain it again.

    Needs CAP_SETPCAP. What this process holds now changes at the next exec.
    """
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if capability not in kept:
            prctl(PR_CAPBSET_DROP, capability)


def has_capability(capability: int) -> bool:
    """Tell whether this process has `capability` in effect."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def release() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's release."""
    return tuple(int(word) for word in re.findall(r"\d+", platform.release())[:2])


def bound_processes(count: int) -> None:
    """Let this PID namespace have at most about so many processes and threads at once, whoever
    starts them.

    Since Linux 6.14 a PID namespace has a pid_max of its own; before, it is the machine's, and left
    alone. The first 300 numbers are given out once only (RESERVED_PIDS, kernel/pid.c).
    """
    if release() >= _OWN_PID_MAX:
        Path("/proc/sys/kernel/pid_max").write_text(str(_RESERVED_PIDS + count))


def bound_shared_memory(most_bytes: int) -> None:
    """Let this IPC namespace have at most so many bytes of System V shared memory, whether touched
    or not.

    Raises OSError but for root: before Linux 6.9 the machine's, and since then that of a user
    namespace in which 0 is somebody.
    """
    Path("/proc/sys/kernel/shmall").write_text(str(most_bytes // resource.getpagesize()))


def bound_watches() -> None:
    """Let this user namespace have so many watches for changes of files: they are of those that the
    user may have.

    An instance may have 8 MiB of events that nobody has read.
    """
    for name, maximum in {"instances": 16, "watches": 65536}.items():
        Path(f"/proc/sys/user/max_inotify_{name}").write_text(str(maximum))


def bound_sockets() -> int:
    """Let a socket of this network namespace hold what the machine gives one at first; return how
    much that can be.

    A buffer is passed by a message or what comes at once, by as much again at most. Of a machine
    that gives far more than Linux does, not all: hardly any of so many are ever full.
    """
    with socket.socket(socket.AF_UNIX) as one:
        sends, takes = (
            one.getsockopt(socket.SOL_SOCKET, option)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
        )
    for name, maximum in {"wmem": sends, "rmem": takes}.items():
        with suppress(OSError):  # a container where they cannot be set
            minimum, first, _ = Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text().split()
            Path(f"/proc/sys/net/ipv4/tcp_{name}").write_text(
                f"{minimum} {min(int(first), maximum)} {maximum}"
            )
    return min(2 * (sends + takes), _MOST_SOCKET_BYTES)


def lower_limit(which: int, value: int) -> None:
    """Set a resource limit, soft and hard; one that is lower already stays."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def leave_session_keyring() -> None:
    """Have an empty session keyring: that of the login holds Kerberos tickets and keys of encrypted
    folders.

    A kernel without key rings has none to leave.
    """
    number = _SYS_KEYCTL.get(platform.machine())
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)


def lower_io_priority() -> None:
    """Let this process's disk input and output come after everyone else's (best effort, level
    7).
    """
    number = _SYS_IOPRIO_SET.get(platform.machine())
    if number is not None:
        _libc.syscall(
            ctypes.c_long(number),
            ctypes.c_int(_IOPRIO_WHO_PROCESS),
            ctypes.c_int(0),
            ctypes.c_int(_IOPRIO_LOWEST_BEST_EFFORT),
        )


def lower_session(process: int) -> None:
    """Give the session of a process a third of the share of another one, where Linux shares the CPU
    by sessions.

    There a process's own nice value counts in its session alone (sched(7), "The autogroup
    feature"). Somebody waits for it, and at 10, as its own is, it would be a tenth.
    """
    Path("/proc", str(process), "autogroup").write_bytes(b"%d" % _SESSION_NICE)
