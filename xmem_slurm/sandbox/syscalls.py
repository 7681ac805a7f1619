"""Which system calls does a dry run do without, and what do they say instead?

Memory that no limit of a process counts and no watch can see: System V's messages and semaphores,
memory files that are only held open, or on their way through a socket, io_uring's and perf's rings,
huge pages, tables of BPF, rules of Landlock, marks of fanotify, pages that are pinned by a pipe or
a socket (one byte of it keeps a huge page), sockets of families that nobody can be asked about, and
larger buffers of the others. File systems and namespaces of its own, which would have such memory
too (a tmpfs that is mounted over: only a control group holds that). The kernel's key rings, and
sockets that lead out whatever the network namespace (vsock). Process 1's limits and priorities,
which the kernel lets whoever has its number change: it watches. A job that runs containers has
namespaces, but none of control groups; and no System V shared memory, as the watch sees that of the
dry run's own IPC namespace alone.

Most programs have another way where a kernel lacks such a call, and the answer is what such a
kernel says. Where a job chooses its CPUs, the size of a socket's buffers or to have large pages, or
wants all of the machine's disks written to, the answer is yes and nothing happens.

A filter is for the calls of one machine type; of a call by another (32-bit programs) the kernel is
said to know none.

Sources: seccomp(2); include/uapi/linux/{seccomp,filter,audit}.h;
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64), v6.18.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator, Sequence

from xmem_slurm.sandbox import linux

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""Calls of x86-64 with this bit are those of a third kind of program."""
_Numbers = tuple[int, int]
"""Of a call, on x86-64 and on aarch64."""
_CALLS: dict[str, tuple[_Numbers, int]] = {
    "add_key": ((248, 217), errno.ENOSYS),
    "bpf": ((321, 280), errno.EPERM),
    "clone3": (
        (435, 435),
        errno.ENOSYS,
    ),  # its flags are behind a pointer; the C library then takes clone
    "fanotify_init": ((300, 262), errno.EPERM),
    "io_uring_setup": ((425, 425), errno.ENOSYS),
    "keyctl": ((250, 219), errno.ENOSYS),
    "landlock_create_ruleset": ((444, 444), errno.ENOSYS),
    "memfd_create": ((319, 279), errno.ENOSYS),
    "memfd_secret": ((447, 447), errno.ENOSYS),
    "msgget": ((68, 186), errno.ENOSPC),
    "perf_event_open": ((298, 241), errno.EACCES),
    "request_key": ((249, 218), errno.ENOSYS),
    "sched_setaffinity": ((203, 122), 0),
    "semget": ((64, 190), errno.ENOSPC),
    "sync": ((162, 81), 0),
    "syncfs": ((306, 267), 0),
    "userfaultfd": ((323, 282), errno.EPERM),
    "vmsplice": ((278, 75), errno.ENOSYS),
}
"""Their answers."""
_CLONE, _UNSHARE, _SHMGET, _MMAP = (56, 220), (272, 97), (29, 194), (9, 222)
_SOCKET, _SOCKETPAIR, _SETSOCKOPT, _PRCTL = (41, 198), (53, 199), (54, 208), (157, 167)
_PRLIMIT, _SCHEDULES = (302, 261), ((142, 118), (144, 119), (314, 274))
_SETPRIORITY, _IOPRIO_SET, _FCNTL = (141, 140), (251, 30), (72, 25)

_WATCH = 1
"""The number of process 1, for all that it has started."""
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_F_SETLEASE, _F_SET_RW_HINT = 1024, 1036
"""Who opens the file outside would wait for it; it would have another hint there, too."""
_MAP_HUGETLB = 0x40000
_SHM_HUGETLB = 0o4000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_FAMILIES = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
_FIRST_LATER_PROTOCOL = 33
"""Netlink's are below, and of the internet's those that need a kernel module with memory of its own
(DCCP, SCTP, UDP Lite, MPTCP) are not."""
_ICMP6 = 58
_SOL_SOCKET = 1
_SO_SNDBUF, _SO_RCVBUF, _SO_ZEROCOPY = 7, 8, 60

# include/uapi/linux/bpf_common.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_SECCOMP_MODE_FILTER = 2


def give_up(*, namespaces: bool = False) -> None:
    """Hold this process, and all that it becomes and starts, to that, but for `namespaces`. It
    gains no privileges.

    Raises OSError. Nothing is given up on a machine of another type than x86-64 and aarch64.
    """
    machine = platform.machine()
    if machine in _ARCHITECTURES:
        program = _program(machine, namespaces=namespaces)
        code = ctypes.create_string_buffer(program, len(program))
        filters = ctypes.create_string_buffer(
            struct.pack("HP", len(program) // 8, ctypes.addressof(code))
        )
        linux.prctl(linux.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filters))


def _program(machine: str, *, namespaces: bool) -> bytes:
    """Return the filter for one architecture (seccomp(2)): other ones, x32 and the calls in the
    table get an error.

    Of the calls below, what their arguments say decides.
    """
    which = list(_ARCHITECTURES).index(machine)
    refused = {name: (numbers[which], answer) for name, (numbers, answer) in _CALLS.items()}
    if namespaces:
        refused["shmget"] = _SHMGET[which], errno.ENOSPC
    steps = [
        *_step(_LOAD, _ARCHITECTURE_AT),
        *_step(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        *_answer(errno.ENOSYS),
        *_step(_LOAD, _NUMBER_AT),
        *_step(_AT_LEAST, _X32, 0, 1),
        *_answer(errno.ENOSYS),
    ]
    for number, answer in refused.values():
        steps += [*_step(_EQUAL, number, 0, 1), *_answer(answer)]
    for numbers, decided in _by_arguments(namespaces=namespaces).items():
        whole = [*decided, *_step(_RETURN, _ALLOW)]
        steps += [*_step(_EQUAL, numbers[which], 0, len(whole)), *whole]
    return b"".join([*steps, *_step(_RETURN, _ALLOW)])


def _by_arguments(*, namespaces: bool) -> dict[_Numbers, Sequence[bytes]]:
    """Return what decides about a call; it is let be where that does not."""
    kind, refusal = (
        (linux.CLONE_NEWCGROUP, errno.EINVAL) if namespaces else (linux.CLONE_NEWUSER, errno.EPERM)
    )
    of_namespaces = _where(0, [(_ANY_BIT, kind)], refusal)
    of_the_watch = _where(0, [(_EQUAL, _WATCH)], errno.EPERM)
    one_other = _where(1, [(_EQUAL, _WATCH)], errno.EPERM)
    of_families = _unless(0, [(_EQUAL, family) for family in _FAMILIES], errno.EAFNOSUPPORT)
    return {
        _CLONE: of_namespaces,
        _UNSHARE: of_namespaces,
        _MMAP: _where(3, [(_ANY_BIT, _MAP_HUGETLB)], errno.ENOMEM),
        _SHMGET: _where(2, [(_ANY_BIT, _SHM_HUGETLB)], errno.ENOMEM),
        **dict.fromkeys((_PRLIMIT, *_SCHEDULES), of_the_watch),
        _SETPRIORITY: [*_unless(0, [(_EQUAL, _PRIO_PROCESS)], errno.EPERM), *one_other],
        _IOPRIO_SET: [*_unless(0, [(_EQUAL, _IOPRIO_WHO_PROCESS)], errno.EPERM), *one_other],
        _FCNTL: _where(1, [(_EQUAL, _F_SETLEASE), (_EQUAL, _F_SET_RW_HINT)], errno.EINVAL),
        _PRCTL: _where(0, [(_EQUAL, linux.PR_SET_THP_DISABLE)], 0),
        _SOCKETPAIR: of_families,
        _SOCKET: [
            *of_families,
            *_step(_LOAD, _ARGUMENTS_AT + 8 * 2),
            *_step(_AT_LEAST, _FIRST_LATER_PROTOCOL, 1, 0),
            *_step(_RETURN, _ALLOW),
            *_unless(2, [(_EQUAL, _ICMP6)], errno.EPROTONOSUPPORT),
        ],
        _SETSOCKOPT: [
            *_step(_LOAD, _ARGUMENTS_AT + 8 * 1),
            *_step(_EQUAL, _SOL_SOCKET, 1, 0),
            *_step(_RETURN, _ALLOW),
            *_where(2, [(_EQUAL, _SO_SNDBUF), (_EQUAL, _SO_RCVBUF)], 0),
            *_where(2, [(_EQUAL, _SO_ZEROCOPY)], errno.EOPNOTSUPP),
        ],
    }


_Tests = Sequence[tuple[int, int]]
"""How to compare an argument, and with what."""


def _where(argument: int, tests: _Tests, answer: int) -> Sequence[bytes]:
    """Give this answer where one of the tests of an argument holds."""
    steps = [*_step(_LOAD, _ARGUMENTS_AT + 8 * argument)]
    for tests_left, (compare, value) in zip(reversed(range(len(tests))), tests, strict=True):
        steps += _step(compare, value, tests_left, 0 if tests_left else 1)
    return [*steps, *_answer(answer)]


def _unless(argument: int, tests: _Tests, answer: int) -> Sequence[bytes]:
    """Give this answer where none of the tests of an argument holds."""
    steps = [*_step(_LOAD, _ARGUMENTS_AT + 8 * argument)]
    for tests_left, (compare, value) in zip(reversed(range(len(tests))), tests, strict=True):
        steps += _step(compare, value, tests_left + 1, 0)
    return [*steps, *_answer(answer)]


def _answer(error: int) -> Iterator[bytes]:
    yield from _step(_RETURN, _ERROR | error)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> Iterator[bytes]:
    yield struct.pack("HBBI", code, if_true, if_false, value)
