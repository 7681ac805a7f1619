"""Which system calls does a dry run do without, and what do they say instead?

Memory that no limit of a process counts and no watch can see (System V's messages and semaphores, memory files that are
only held open, or on their way through a socket, io_uring's rings), file systems and namespaces of its own, which would
have such memory too (a tmpfs that is mounted over: only a control group holds that), the kernel's key rings, and
sockets that lead out whatever the network namespace (vsock). A job that runs containers has namespaces, but none of
control groups; and no System V shared memory, as the watch sees that of the dry run's own IPC namespace alone.

Most programs have another way where a kernel lacks such a call, and the answer is what such a kernel says. Where a job
chooses its CPUs, the answer is yes and nothing happens: those that it has are the dry run's.

A filter is for the calls of one machine type; of a call by another (32-bit programs) the kernel is said to know none.

Sources: seccomp(2); include/uapi/linux/{seccomp,filter,audit}.h; arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h (aarch64), v6.18.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator

from xmem_slurm.sandbox import linux

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""Calls of x86-64 with this bit are those of a third kind of program."""
_Call = tuple[tuple[int, int], int | None]
"""Its numbers on x86-64 and on aarch64, and the answer: None where that hangs on the first argument."""
_CALLS: dict[str, _Call] = {
    "add_key": ((248, 217), errno.ENOSYS),
    "clone": ((56, 220), None),
    "clone3": ((435, 435), errno.ENOSYS),  # its flags are behind a pointer; the C library then takes clone
    "io_uring_setup": ((425, 425), errno.ENOSYS),
    "keyctl": ((250, 219), errno.ENOSYS),
    "memfd_create": ((319, 279), errno.ENOSYS),
    "memfd_secret": ((447, 447), errno.ENOSYS),
    "msgget": ((68, 186), errno.ENOSPC),
    "request_key": ((249, 218), errno.ENOSYS),
    "sched_setaffinity": ((203, 122), 0),
    "semget": ((64, 190), errno.ENOSPC),
    "shmget": ((29, 194), errno.ENOSPC),
    "socket": ((41, 198), None),
    "unshare": ((272, 97), None),
    "userfaultfd": ((323, 282), errno.EPERM),
}
_WITHOUT_NAMESPACES = frozenset({"shmget"})
"""Refused only to who may have namespaces of its own."""
_AF_VSOCK = 40

# include/uapi/linux/bpf_common.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_SECCOMP_MODE_FILTER = 2


def give_up(*, namespaces: bool = False) -> None:
    """Hold this process, and all that it becomes and starts, to that, but for `namespaces`. It gains no privileges.

    Raises OSError. Nothing is given up on a machine of another type than x86-64 and aarch64.
    """
    machine = platform.machine()
    if machine in _ARCHITECTURES:
        no_cgroups, nobody = (linux.CLONE_NEWCGROUP, errno.EINVAL), (linux.CLONE_NEWUSER, errno.EPERM)
        allowed = frozenset() if namespaces else _WITHOUT_NAMESPACES
        program = _program(machine, *(no_cgroups if namespaces else nobody), allowed)
        code = ctypes.create_string_buffer(program, len(program))
        filters = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(code)))
        linux.prctl(linux.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filters))


def _program(machine: str, namespace: int, refusal: int, allowed: frozenset[str]) -> bytes:
    """Return the filter for one architecture (seccomp(2)): other ones, x32 and the calls in the tables get an error.

    Who asks for a `namespace` of this kind gets `refusal`; the calls that are `allowed` get none.
    """
    which = list(_ARCHITECTURES).index(machine)
    steps = [
        *_step(_LOAD, _ARCHITECTURE_AT),
        *_step(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        *_step(_RETURN, _ERROR | errno.ENOSYS),
        *_step(_LOAD, _NUMBER_AT),
        *_step(_AT_LEAST, _X32, 0, 1),
        *_step(_RETURN, _ERROR | errno.ENOSYS),
    ]
    for name, (numbers, answer) in _CALLS.items():
        if answer is not None and name not in allowed:
            steps += [*_step(_EQUAL, numbers[which], 0, 1), *_step(_RETURN, _ERROR | answer)]
    for name in ("clone", "unshare"):
        steps += _where(_CALLS[name][0][which], _ANY_BIT, namespace, refusal)
    steps += _where(_CALLS["socket"][0][which], _EQUAL, _AF_VSOCK, errno.EAFNOSUPPORT)
    return b"".join([*steps, *_step(_RETURN, _ALLOW)])


def _where(number: int, compare: int, value: int, answer: int) -> Iterator[bytes]:
    """Give this answer to a call whose first argument is so, and let its others be."""
    yield from _step(_EQUAL, number, 0, 4)
    yield from _step(_LOAD, _FIRST_ARGUMENT_AT)
    yield from _step(compare, value, 0, 1)
    yield from _step(_RETURN, _ERROR | answer)
    yield from _step(_RETURN, _ALLOW)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> Iterator[bytes]:
    yield struct.pack("HBBI", code, if_true, if_false, value)
