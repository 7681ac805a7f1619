"""What a hostile job tries from inside the sandbox. Each function is one attempt, and raises
Escaped where it works.

Run by the system's Python in a dry run, each attempt in a process of its own: `hostile_probes.py`
prints a JSON object with what came of each. What it takes is the standard library; system calls are
made without the C library's help."""

import contextlib
import ctypes
import fcntl
import itertools
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
NUMBERS = {  # on x86-64, on aarch64
    "add_key": (248, 217), "bpf": (321, 280), "clone": (56, 220), "clone3": (435, 435), "fanotify_init": (300, 262),
    "fsopen": (430, 430), "init_module": (175, 105), "io_uring_setup": (425, 425), "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444), "memfd_create": (319, 279), "memfd_secret": (447, 447), "mmap": (9, 222),
    "mount": (165, 40), "move_mount": (429, 429), "msgget": (68, 186), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241), "pivot_root": (155, 41),
    "prctl": (157, 167), "ptrace": (101, 117), "reboot": (169, 142), "request_key": (249, 218),
    "sched_setaffinity": (203, 122), "semget": (64, 190), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "shmget": (29, 194), "swapon": (167, 224), "syslog": (103, 116),
    "timer_create": (222, 107), "unshare": (272, 97), "userfaultfd": (323, 282), "vmsplice": (278, 75),
    "ioprio_set": (251, 30), "sched_setattr": (314, 274), "syncfs": (306, 267),
    "acct": (163, 89), "adjtimex": (159, 171), "capset": (126, 91), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "delete_module": (176, 106), "finit_module": (313, 273), "fspick": (433, 433),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "migrate_pages": (256, 238),
    "mount_setattr": (442, 442), "move_pages": (279, 239), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "process_madvise": (440, 440),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "quotactl": (179, 60),
    "setdomainname": (171, 162), "shmctl": (31, 195), "swapoff": (168, 225), "timerfd_create": (283, 85),
    "umount2": (166, 39), "vhangup": (153, 58),
}  # fmt: skip
NEWUSER, NEWNS, NEWIPC, NEWNET = 0x10000000, 0x20000, 0x08000000, 0x40000000
OUTSIDE = "xmem-outside"
"""The name of what is there outside for every process to see (`leave_outside`)..."""
OUTSIDE_KEY = 0x786D656D
"""...and the key of System V's shared memory that is."""


class Escaped(Exception):  # noqa: N818 - it is what happened
    """It worked."""


def call(name: str, *arguments: object) -> int:
    """Make a system call; return its result, or the errno as a negative number."""
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(libc.syscall(ctypes.c_long(NUMBERS[name][0 if X86 else 1]), *given))
    return -ctypes.get_errno() if result == -1 else result


def refused(name: str, *arguments: object) -> None:
    result = call(name, *arguments)
    if result >= 0:
        raise Escaped(f"{name} returned {result}")


def denied(act: Callable[[], object]) -> None:
    try:
        act()
    except OSError:
        return
    raise Escaped("it was allowed")


def leave_outside() -> None:
    """Make what no dry run may reach; for whoever starts one, and until it ends."""
    call("shmget", OUTSIDE_KEY, 4096, 0o1666)
    call("mq_open", OUTSIDE.encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{OUTSIDE}")
    listening.listen()
    os.set_inheritable(listening.detach(), True)


def clear_outside() -> None:
    """Take it away."""
    call("shmctl", call("shmget", OUTSIDE_KEY, 0, 0), 0, None)
    call("mq_unlink", OUTSIDE.encode())


# -- memory that no limit of a process counts ------------------------------------------------------


def memory_file() -> None:
    refused("memfd_create", b"x", 0)


def secret_memory_file() -> None:
    refused("memfd_secret", 0)


def system_v_shared_memory_of_another_namespace() -> None:
    """Of its own namespace's, what is touched counts (`test_memory_counts_wherever_it_is`)."""
    if call("unshare", NEWUSER | NEWIPC) >= 0:
        refused("shmget", 0, 1 << 30, 0o1600)


def system_v_semaphores() -> None:
    refused("semget", 0, 32000, 0o1600)


def system_v_messages() -> None:
    refused("msgget", 0, 0o1600)


def io_uring() -> None:
    refused("io_uring_setup", 4096, bytes(120))


def page_faults_by_hand() -> None:
    refused("userfaultfd", 0)


def a_bpf_map() -> None:
    refused("bpf", 0, bytes(72), 72)


def a_bpf_map_of_an_array() -> None:
    refused("bpf", 0, struct.pack("IIII56x", 2, 4, 8, 1 << 16), 72)


def huge_pages() -> None:
    refused("mmap", None, 2 << 20, 3, 0x40022, -1, 0)
    refused("mmap", None, 2 << 20, 3, 0x40021 | 21 << 26, -1, 0)


def huge_pages_that_come_by_themselves() -> None:
    """All of one stays where all but a page of it is unmapped."""
    call("prctl", 41, 0, 0, 0, 0)
    memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(14)
    memory.write(bytes(8 << 20))
    lines = Path("/proc/self/smaps").read_text().splitlines()
    if any(line.split()[1] != "0" for line in lines if line.startswith("AnonHugePages")):
        raise Escaped("it has some")


def huge_pages_of_system_v() -> None:
    refused("shmget", 0, 2 << 20, 0o5600)


def huge_pages_held_by_a_pipe() -> None:
    """One byte of a page of 2 MiB keeps all of it."""
    page = mmap.mmap(-1, 4096)
    reach = ctypes.addressof(ctypes.c_char.from_buffer(page))
    refused("vmsplice", os.pipe()[1], struct.pack("NN", reach, 1), 1, 0)


def pages_held_by_a_socket() -> None:
    denied(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 60, 1))


def rings_of_performance_events() -> None:
    refused("perf_event_open", struct.pack("IIQ112x", 1, 128, 0), 0, -1, -1, 0)


def rules_of_landlock() -> None:
    refused("landlock_create_ruleset", struct.pack("Q", 1), 8, 0)


def marks_of_fanotify() -> None:
    refused("fanotify_init", 0x200, 0)


def sockets_that_nobody_can_be_asked_about() -> None:
    families = set(range(50)) - {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    kinds = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET
    for family in families:
        for kind in kinds:
            denied(lambda family=family, kind=kind: socket.socket(family, kind))  # type: ignore[misc]
            denied(lambda family=family, kind=kind: socket.socketpair(family, kind))  # type: ignore[misc]
    for protocol in (33, 132, 136, 262):
        for kind in kinds:
            denied(
                lambda kind=kind, protocol=protocol: socket.socket(socket.AF_INET, kind, protocol)
            )  # type: ignore[misc]


def larger_buffers() -> None:
    for family in (socket.AF_UNIX, socket.AF_INET):
        one = socket.socket(family)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            before = one.getsockopt(socket.SOL_SOCKET, option)
            one.setsockopt(socket.SOL_SOCKET, option, 2 * before)
            if one.getsockopt(socket.SOL_SOCKET, option) > before:
                raise Escaped(f"{family}: {option}")


def larger_buffers_by_force() -> None:
    for family in (socket.AF_UNIX, socket.AF_INET):
        for option in (32, 33):  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
            denied(
                lambda family=family, option=option: socket.socket(family).setsockopt(  # type: ignore[misc]
                    socket.SOL_SOCKET, option, 1 << 26
                )
            )


def larger_buffers_by_use() -> None:
    """As TCP's grow by themselves."""
    for name in ("rmem", "wmem"):
        if int(Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text().split()[2]) > 4 << 20:
            raise Escaped(name)


def _many(most: int, act: Callable[[], object]) -> None:
    """Do what takes something that all of a user's processes, or all of the machine's, share."""
    kept = []
    try:
        while len(kept) <= most:
            kept.append(act())
    except OSError:
        return
    raise Escaped(f"it has more than {most}")


def given(result: int) -> int:
    """Return it, where it is no error."""
    if result < 0:
        raise OSError
    return result


def terminals_of_the_machine() -> None:
    _many(200, os.openpty)


def watches_of_the_user() -> None:
    _many(20, lambda: given(int(libc.inotify_init())))


def timers_of_the_user() -> None:
    _many(10_000, lambda: given(call("timer_create", 1, None, ctypes.create_string_buffer(8))))


def watched_files_of_the_user() -> None:
    """Too many to try: an instance has as many as the user may have."""
    if int(Path("/proc/sys/user/max_inotify_watches").read_text()) > 1 << 16:
        raise Escaped("it may have all of the user's")


def queues_of_messages() -> None:
    """Until what all queues of a user may hold is used up."""
    numbers = itertools.count()
    attributes = struct.pack("NNNN32x", 0, 10, 8192, 0)
    _many(
        4,
        lambda: given(
            call("mq_open", b"x%d" % next(numbers), os.O_RDWR | os.O_CREAT, 0o600, attributes)
        ),
    )


def timers_that_wake_the_machine() -> None:
    for clock in (8, 9):  # CLOCK_REALTIME_ALARM, CLOCK_BOOTTIME_ALARM
        refused("timerfd_create", clock, 0)
        refused("timer_create", clock, None, ctypes.create_string_buffer(8))


def message_queues_of_the_user() -> None:
    if resource.getrlimit(12)[1] > 1 << 18:
        raise Escaped("RLIMIT_MSGQUEUE")


# -- what is bound from outside --------------------------------------------------------------------

NODES = [
    f"/dev/{name}"
    for name in ("null", "zero", "full", "random", "urandom", "fuse")
    if Path("/dev", name).exists()
]


def _nodes_are(act: Callable[[str], object]) -> None:
    for node in NODES:
        denied(lambda node=node: act(node))  # type: ignore[misc]


def the_mode_of_a_device() -> None:
    _nodes_are(lambda node: Path(node).chmod(0o666))


def the_owner_of_a_device() -> None:
    _nodes_are(lambda node: os.chown(node, os.getuid(), os.getgid()))


def the_times_of_a_device() -> None:
    _nodes_are(os.utime)


def attributes_of_a_device() -> None:
    _nodes_are(lambda node: os.setxattr(node, "user.xmem", b"x"))
    _nodes_are(lambda node: os.setxattr(node, "trusted.xmem", b"x"))
    _nodes_are(lambda node: os.setxattr(node, "security.xmem", b"x"))


def a_device_that_is_open() -> None:
    for node in NODES[:5]:
        one = os.open(node, os.O_RDONLY)
        for act in (
            lambda one: os.fchmod(one, 0o666),
            lambda one: os.fchown(one, os.getuid(), -1),
            os.utime,
        ):
            denied(lambda act=act, one=one: act(one))  # type: ignore[misc]


def another_name_of_a_device() -> None:
    _nodes_are(lambda node: os.link(node, "/dev/another"))
    _nodes_are(lambda node: Path(node).rename("/dev/another"))
    _nodes_are(os.unlink)


def a_device_below_proc() -> None:
    one = os.open("/dev/null", os.O_RDONLY)
    denied(lambda: Path(f"/proc/self/fd/{one}").chmod(0o666))


def a_terminal_s_times() -> None:
    denied(lambda: os.open("/dev/tty", os.O_RDWR))


def leases_of_files_outside() -> None:
    denied(lambda: fcntl.fcntl(os.open("/dev/null", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK))
    Path("/tmp/own").touch()
    denied(lambda: fcntl.fcntl(os.open("/tmp/own", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK))


def hints_of_files_outside() -> None:
    """They stay with the file for as long as the kernel remembers it; who may read it sets one."""
    for path in (*NODES[:5], "/etc/passwd", "/tmp/hinted"):
        one = os.open(path, os.O_RDONLY | (os.O_CREAT if path == "/tmp/hinted" else 0))
        denied(lambda one=one: fcntl.fcntl(one, 1036, struct.pack("Q", 5)))  # type: ignore[misc]


def other_devices() -> None:
    """But for those above, terminals, and /dev/fuse, which jobs have that run containers."""
    for folder, _, names in os.walk("/dev"):
        for path in (Path(folder, name) for name in names):
            mode = path.lstat().st_mode
            is_terminal = path.name == "ptmx" or folder == "/dev/pts"
            is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
            if is_device and not is_terminal and str(path) not in NODES:
                raise Escaped(str(path))


def descriptors_from_outside() -> None:
    """But for the three that it is given; those of pipes between the attempts are its own."""
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # that of the list itself
            target = str(link.readlink())
            if int(link.name) > 2 and not target.startswith(("pipe:", "/proc/")):
                raise Escaped(f"{link.name}: {target}")


def files_that_are_bound_alone() -> None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if Path(point).is_file() and not point.startswith("/proc"):
            denied(lambda point=point: Path(point).chmod(0o777))  # type: ignore[misc]
            denied(lambda point=point: os.utime(point))  # type: ignore[misc]


def locked_limits_of_data() -> None:
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    denied_value(lambda: resource.setrlimit(resource.RLIMIT_DATA, (most + 1, most + 1)))


def denied_value(act: Callable[[], object]) -> None:
    try:
        act()
    except (OSError, ValueError):
        return
    raise Escaped("it was allowed")


def locked_limits_of_file_size() -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    denied_value(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most + 1, most + 1)))


# -- namespaces and mounts -------------------------------------------------------------------------


def a_user_namespace() -> None:
    refused("unshare", NEWUSER)


def a_user_namespace_with_mounts() -> None:
    refused("unshare", NEWUSER | NEWNS)


def a_user_namespace_by_clone() -> None:
    result = call("clone", NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    if result > 0:
        raise Escaped("clone made one")


def a_user_namespace_by_clone3() -> None:
    arguments = (
        NEWUSER.to_bytes(8, "little")
        + bytes(24)
        + int(signal.SIGCHLD).to_bytes(8, "little")
        + bytes(24)
    )
    result = call("clone3", arguments, 64)
    if result == 0:
        os._exit(0)
    if result > 0:
        raise Escaped("clone3 made one")


def an_ipc_namespace() -> None:
    refused("unshare", NEWIPC)


def a_mount_namespace() -> None:
    refused("unshare", NEWNS)


def a_network_namespace() -> None:
    refused("unshare", NEWNET)


def the_namespaces_of_process_1() -> None:
    for name in ("user", "mnt", "net", "ipc", "pid"):
        try:
            descriptor = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        refused("setns", descriptor, 0)


def a_tmpfs() -> None:
    refused("mount", b"none", b"/tmp", b"tmpfs", 0, None)


def a_tmpfs_by_the_new_calls() -> None:
    refused("fsopen", b"tmpfs", 0)


def a_tmpfs_in_a_namespace_by_unshare_1() -> None:
    if (
        os.system("unshare --user --map-root-user --mount mount -t tmpfs none /mnt 2> /dev/null")
        == 0
    ):
        raise Escaped("it was mounted")


def a_remount_that_may_be_written() -> None:
    refused("mount", b"none", b"/sys", None, 0x1020, None)


def a_copy_of_the_mounts() -> None:
    descriptor = call("open_tree", -100, b"/", 0x1)
    if descriptor >= 0:
        refused("move_mount", descriptor, b"", -100, b"/mnt", 4)


def another_root() -> None:
    refused("pivot_root", b"/tmp", b"/tmp")


def a_root_above_this_one() -> None:
    denied(lambda: os.chroot("/tmp"))


def a_mount_elsewhere() -> None:
    for flags in (0x2000, 0x1000, 0x5000):  # MS_MOVE, MS_BIND, with MS_REC
        refused("mount", b"/tmp", b"/mnt", None, flags, None)
    refused("mount", b"none", b"/", None, 0x44000, None)  # MS_PRIVATE | MS_REC
    refused("mount", b"none", b"/", None, 0x104000, None)  # MS_SHARED | MS_REC


def what_is_mounted_over() -> None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        refused("umount2", line.split()[4].encode(), 2)


def flags_of_the_mounts() -> None:
    """Without MOUNT_ATTR_RDONLY, _NOSUID and _NODEV."""
    clear = struct.pack("QQQQ", 0, 7, 0, 0)
    for flags in (0, 0x8000):  # AT_RECURSIVE
        refused("mount_setattr", -100, b"/", flags, clear, len(clear))
    refused("fspick", -100, b"/", 0)


def the_namespaces_above() -> None:
    """By NS_GET_USERNS and NS_GET_PARENT, and by a descriptor of process 1."""
    for name in ("user", "pid", "mnt", "net", "ipc"):
        try:
            inner = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        for request in (0xB701, 0xB702):
            try:
                outer = fcntl.ioctl(inner, request)
            except OSError:
                continue
            refused("setns", outer, 0)
    one = call("pidfd_open", 1, 0)
    if one >= 0:
        for kind in (NEWUSER, NEWNS, NEWIPC, NEWNET, 0x20000000, NEWUSER | NEWNS):
            refused("setns", one, kind)


def a_root_that_is_left() -> None:
    """What is open of a folder above a root that it changes to leads out of that."""
    above = os.open("/", os.O_RDONLY)
    denied(lambda: os.chroot("/tmp"))
    os.chdir("/")
    for _ in range(40):
        os.chdir("..")
    if os.fstat(above).st_ino != Path().stat().st_ino:
        raise Escaped("there is something above")


def files_by_their_handle() -> None:
    handle = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132), 136)
    mount = ctypes.c_int()
    libc.syscall(
        ctypes.c_long(NUMBERS["name_to_handle_at"][0 if X86 else 1]),
        -100,
        b"/tmp",
        handle,
        ctypes.byref(mount),
        0,
    )
    refused("open_by_handle_at", os.open("/tmp", os.O_RDONLY), handle.raw, 0)


# -- who is outside --------------------------------------------------------------------------------


def tracing_process_1() -> None:
    refused("ptrace", 16, 1, 0, 0)


def memory_of_process_1() -> None:
    denied(lambda: os.open("/proc/1/mem", os.O_RDONLY))


def the_root_of_process_1() -> None:
    denied(lambda: list(Path("/proc/1/root").iterdir()))


def open_files_of_process_1() -> None:
    for number in range(64):
        denied(lambda number=number: os.open(f"/proc/1/fd/{number}", os.O_RDONLY))  # type: ignore[misc]


def memory_of_process_1_by_calls() -> None:
    page = ctypes.create_string_buffer(4096)
    ours = struct.pack("NN", ctypes.addressof(page), 8)
    theirs = struct.pack("NN", 0x400000, 8)
    for name in ("process_vm_readv", "process_vm_writev"):
        refused(name, 1, ours, 1, theirs, 1, 0)
    refused("kcmp", 1, os.getpid(), 1, 0, 0)
    refused("move_pages", 1, 0, None, None, None, 0)
    refused("migrate_pages", 1, 8, bytes(8), bytes(8))
    one = call("pidfd_open", 1, 0)
    if one >= 0:
        refused("process_madvise", one, theirs, 1, 21, 0)
        for number in range(64):
            refused("pidfd_getfd", one, number, 0)


def settings_of_process_1() -> None:
    names = ("autogroup", "clear_refs", "comm", "coredump_filter", "oom_score_adj", "sched")
    names += ("gid_map", "loginuid", "mem", "projid_map", "setgroups", "timerslack_ns", "uid_map")
    names += ("attr/current", "attr/exec", "timens_offsets")
    for name in names:
        denied(lambda name=name: Path("/proc/1", name).write_text("1"))  # type: ignore[misc]


def capabilities_that_were_given_up() -> None:
    """All but those over files, and over its own processes and who they are."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = [int(line.split()[1], 16) for line in lines if line.startswith("Cap")]
    if any(capabilities & ~0b11111011 for capabilities in held):
        raise Escaped(f"it has {held}")
    everything = struct.pack("IIIIII", *[0xFFFFFFFF] * 3, *[0x1FF] * 3)
    refused("capset", struct.pack("Ii", 0x20080522, 0), everything)


def what_processes_share_outside() -> None:
    """System V's shared memory, and POSIX message queues, that are open to everybody."""
    refused("shmget", OUTSIDE_KEY, 0, 0)
    refused("mq_open", OUTSIDE.encode(), os.O_RDONLY, 0, None)


def a_socket_without_a_file() -> None:
    denied(lambda: socket.socket(socket.AF_UNIX).connect(f"\0{OUTSIDE}"))


def the_machine_s_audit_log() -> None:
    """Read, or written to with an AUDIT_USER; of netlink, as the next."""
    try:
        one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
    except OSError:  # this kernel has none
        return
    denied(lambda: one.bind((0, 1)))
    _answered_by_an_error(one, 1105, b"xmem\0\0\0\0")


def _answered_by_an_error(one: socket.socket, kind: int, message: bytes, flags: int = 0) -> None:
    """Send a message of netlink that wants an answer."""
    one.settimeout(5)
    one.send(struct.pack("IHHII", 16 + len(message), kind, 5 | flags, 1, 0) + message)
    with contextlib.suppress(TimeoutError):
        if struct.unpack_from("i", one.recv(4096), 16)[0] >= 0:
            raise Escaped(f"message {kind} was taken")


def another_address() -> None:
    """RTM_NEWADDR, of the loopback: who may do that may have routes and interfaces, too."""
    address = struct.pack("HH4B", 8, 2, 127, 9, 9, 9)
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    message = struct.pack("BBBBI", socket.AF_INET, 8, 0, 0, 1) + address
    _answered_by_an_error(one, 20, message, 0x600)  # NLM_F_CREATE | NLM_F_EXCL


def killing_process_1() -> None:
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGTERM)
    denied(lambda: os.kill(os.getppid() + 100_000, 0))


def limits_of_process_1() -> None:
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
        denied(lambda which=which: resource.prlimit(1, which, (9, 9)))  # type: ignore[misc]


def priorities_of_process_1() -> None:
    """With one of the lowest it would look too late."""
    before = os.getpriority(os.PRIO_PROCESS, 1), os.sched_getscheduler(1)
    for which, who in (
        (os.PRIO_PROCESS, 1),
        (os.PRIO_PGRP, os.getpgid(1)),
        (os.PRIO_USER, os.getuid()),
    ):
        denied(lambda which=which, who=who: os.setpriority(which, who, 19))  # type: ignore[misc]
    denied(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
    denied(lambda: os.sched_setparam(1, os.sched_param(0)))
    for which, who in ((1, 1), (2, os.getpgid(1)), (3, os.getuid())):
        refused("ioprio_set", which, who, 3 << 13)
    refused("sched_setattr", 1, struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 0)
    if (os.getpriority(os.PRIO_PROCESS, 1), os.sched_getscheduler(1)) != before:
        raise Escaped("it was changed")


def the_session_s_keys() -> None:
    if "xmem-secret" in Path("/proc/keys").read_text():
        raise Escaped("a key of the login is there")


def asking_for_keys() -> None:
    refused("request_key", b"user", b"xmem-secret", None, 0)
    refused("keyctl", 0, -3, 0)


def leaving_keys() -> None:
    refused("add_key", b"user", b"left", b"x", 1, -4)


def a_socket_to_the_hypervisor() -> None:
    denied(lambda: socket.socket(40, socket.SOCK_STREAM))


def packets_of_the_machine() -> None:
    denied(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).bind(("eth0", 0)))


def the_network() -> None:
    denied(lambda: socket.create_connection(("192.0.2.1", 80), 1))


# -- the machine -----------------------------------------------------------------------------------


def more_cpus() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    if os.sched_getaffinity(0) != before:
        raise Escaped("it has more")


def a_real_time_schedule() -> None:
    denied(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))


def a_deadline() -> None:
    """SCHED_DEADLINE, and a reservation of half of a CPU."""
    refused(
        "sched_setattr", 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 5 << 20, 10 << 20, 10 << 20), 0
    )


def a_disk_before_all_others() -> None:
    refused("ioprio_set", 1, 0, 1 << 13)  # IOPRIO_CLASS_RT


def a_better_nice_value() -> None:
    denied(lambda: os.nice(-1))


def _outlive(*, unseen: bool) -> None:
    """Be one that is not killed where memory is short: raised again, or ended, within a moment."""
    child = os.fork()
    if child == 0:
        score, until = Path("/proc/self/oom_score_adj"), time.monotonic() + 10
        try:
            score.write_text("0")
            call("prctl", 4, 0 if unseen else 1, 0, 0, 0)
        except OSError:
            os._exit(9)
        while score.read_text().strip() != "1000" and time.monotonic() < until:
            time.sleep(0.02)
        os._exit(0 if time.monotonic() > until else 9)
    if os.waitpid(child, 0)[1] == 0:
        raise Escaped("it stays")


def surviving_where_memory_is_short() -> None:
    _outlive(unseen=False)


def surviving_where_memory_is_short_unseen() -> None:
    _outlive(unseen=True)


def the_machine_s_disks_written_to() -> None:
    """The kernel says that there is no such file; who does not ask it says that all is well."""
    if call("syncfs", -1) != 0:
        raise Escaped("sync goes through")


def settings_of_the_kernel() -> None:
    for name in (
        "kernel/core_pattern",
        "vm/drop_caches",
        "user/max_user_namespaces",
        "kernel/shmmax",
    ):
        denied(lambda name=name: Path("/proc/sys", name).write_text("1"))  # type: ignore[misc]


def every_setting_of_the_kernel() -> None:
    _are_read_only("/proc/sys")


def everything_of_sys() -> None:
    _are_read_only("/sys")


def _are_read_only(root: str, most: int = 5000) -> None:
    """Try to open each file to write to it, but for what others would wait for."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            if stat.S_ISREG(path.lstat().st_mode):
                most -= 1
                denied(lambda path=path: os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # type: ignore[misc]
        if most < 0:
            return


def memory_of_the_kernel() -> None:
    for name in ("kcore", "kmsg", "vmcore"):
        denied(lambda name=name: os.open(f"/proc/{name}", os.O_RDONLY | os.O_NONBLOCK))  # type: ignore[misc]
    for name in ("mem", "kmem", "port", "kmsg", "kvm", "vhost-net", "userfaultfd", "loop-control"):
        denied(lambda name=name: os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK))  # type: ignore[misc]


def keys_of_the_kernel() -> None:
    denied(lambda: Path("/proc/sysrq-trigger").write_text("h"))


def files_of_sys() -> None:
    for folder, _, names in os.walk("/sys/fs"):
        for name in names[:20]:
            denied(lambda path=Path(folder, name): path.open("r+b"))  # type: ignore[misc]


def control_groups() -> None:
    for folder in Path("/sys/fs/cgroup").glob("*"):
        if folder.is_dir():
            denied(lambda folder=folder: (folder / "xmem-hostile").mkdir())  # type: ignore[misc]


def its_own_control_group() -> None:
    """And those above it, which a user whose subtree it is owns, too."""
    line = next(
        (
            line
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        ),
        "0::/",
    )
    here = Path("/sys/fs/cgroup", line[3:].lstrip("/"))
    for folder in (here, *here.parents[:2], *here.parent.glob("*/")):
        for name in (
            "cgroup.procs",
            "cgroup.threads",
            "cgroup.kill",
            "memory.max",
            "pids.max",
            "cpu.max",
        ):
            denied(lambda path=folder / name: os.open(path, os.O_WRONLY))  # type: ignore[misc]
        denied(lambda folder=folder: (folder / "xmem-hostile").mkdir())  # type: ignore[misc]


def a_device() -> None:
    denied(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)))


def modules_swap_time_and_name() -> None:
    refused("init_module", bytes(8), 8, b"")
    refused("swapon", b"/tmp", 0)
    refused("settimeofday", bytes(16), None)
    refused("sethostname", b"x", 1)
    refused("syslog", 5, None, 0)
    refused("reboot", 0xFEE1DEAD, 672274793, 0, 0)


def other_clocks() -> None:
    refused("clock_settime", 0, bytes(16))
    refused("adjtimex", struct.pack("I204x", 1))
    refused("clock_adjtime", 0, struct.pack("I204x", 1))


def other_kernels() -> None:
    for name in ("kexec_load", "kexec_file_load"):
        refused(name, 0, 0, 0, 0, 0)
    refused("finit_module", os.open("/dev/null", os.O_RDONLY), b"", 0)
    refused("delete_module", b"overlay", 0x800)


def records_and_shares_of_the_machine() -> None:
    """Accounts of processes, quotas, swap, the domain's name, and a terminal that is hung up."""
    refused("acct", b"/tmp")
    refused("acct", None)
    refused("quotactl", 0x80000100, b"/dev/none", 0, None)
    refused("swapoff", b"/tmp")
    refused("setdomainname", b"x", 1)
    refused("vhangup")


def privileges_by_exec() -> None:
    lines = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":\t" in line
    )
    if (lines["NoNewPrivs"], lines["Seccomp"]) != ("1", "2"):
        raise Escaped(str(lines))


def calls_of_32_bit_programs() -> None:
    """getpid by `int 0x80`, where numbers mean other calls."""
    if not X86:
        return
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    if function() > 0:
        raise Escaped("the kernel answers")


def calls_of_x32_programs() -> None:
    if X86 and libc.syscall(ctypes.c_long(0x40000000 | 39)) > 0:
        raise Escaped("the kernel answers")


def a_core_pattern_s_program() -> None:
    if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1):
        raise Escaped("core files")


def attempts() -> dict[str, Callable[[], None]]:
    """By name, all of the above."""
    helpers = {attempts, main, call, refused, denied, denied_value, given}
    helpers |= {_outlive, _many, _nodes_are, _are_read_only, _answered_by_an_error}
    helpers |= {leave_outside, clear_outside}
    return {
        name: each
        for name, each in globals().items()
        if isinstance(each, FunctionType) and each not in helpers
    }


def main() -> None:
    said = {}
    wanted = sys.argv[1:] or attempts()
    for name, attempt in ((name, attempts()[name]) for name in wanted):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                attempt()
                outcome = "held"
            except Escaped as error:
                outcome = f"escaped: {error}"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            os.write(writing, outcome.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            said[name] = file.read().decode() or "it died"
        os.waitpid(child, 0)
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
