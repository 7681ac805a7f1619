"""Which file systems do not answer just now? A look at one that hangs would hang whoever looks, beyond any signal.

On a login node there is always a mount whose server is gone: somebody's sshfs, an old NFS export. A dry run that has
nothing to do with it must not wait for it. So each file system that another process or machine serves is looked at by a
process of its own, all at once and before anything else looks. One that does not come back is left behind, as nothing
can end it; it holds a name meanwhile, by which the next dry run of this user knows without another look.
"""

import hashlib
import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from xmem_slurm.descriptors import close_all_but
from xmem_slurm.sandbox.mounts import Mount

SECONDS = 5.0
"""So long a look may take: a busy server answers within a second or two."""

_LOCAL = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "overlay", "ramfs", "squashfs"}
    | {"tmpfs", "udf", "vfat", "xfs", "zfs"}
)
"""What the kernel answers for by itself. All else is looked at, so that nobody has to know every network's name."""


_LOOK = ("stat", "-f")
"""What this asks for (statfs(2)) is in no cache: a server has to answer itself."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def silent(mounts: Sequence[Mount], ignored: frozenset[str], look: Sequence[str] = _LOOK) -> list[Path]:
    """Return the mount points that do not answer in time; those of the kinds `ignored` are not looked at.

    `look` is the command that looks at one. An error is an answer, too: not allowed, gone.

    Raises:
        OSError: no process can be started.
    """
    asked = {mount.point for mount in mounts if mount.kind not in _LOCAL | ignored}
    answers = {_ask(point, look): point for point in asked}
    found, end = list[Path](), time.monotonic() + SECONDS
    while answers:
        ready, _, _ = select.select(list(answers), [], [], max(0.0, end - time.monotonic()))
        if not ready:
            break
        for answer in ready:
            point = answers.pop(answer)
            if os.read(answer, 1) != b".":  # it still hangs from an earlier look
                found.append(point)
            os.close(answer)
    for answer, point in answers.items():
        os.close(answer)
        found.append(point)
    return sorted(found)


def _ask(point: Path, look: Sequence[str]) -> int:
    """Have a process look at a mount point; return a descriptor on which it answers with a dot, or ends."""
    answer, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:  # nobody's child: it may outlive us
                _look(point, look, end)
        finally:
            os._exit(0)
    os.close(end)
    os.waitpid(child, 0)
    return answer


def _look(point: Path, look: Sequence[str], end: int) -> None:
    """Become the command, of which nothing of ours is held, but for its name, if it never ends.

    Raises:
        OSError: an earlier look at this place still has that name.
    """
    os.setsid()
    os.chdir("/")
    name = hashlib.sha256(f"{os.getuid()} {point}".encode(errors="surrogateescape")).hexdigest()
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    held.bind(f"\0xmem-slurm-silent-{name}")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, source in enumerate((nothing, end, nothing, held.fileno())):
        os.dup2(source, number + 10)
    for number in range(4):
        os.dup2(number + 10, number)
    close_all_but(3)
    os.execve("/bin/sh", ["sh", "-c", '"$@" >&2; printf .', "look", *look, os.fspath(point)], _ENVIRONMENT)
