"""Which file systems do not answer just now? A look at one that hangs would hang whoever looks,
beyond any signal.

On a login node there is always a mount whose server is gone: somebody's sshfs, an old NFS export. A
dry run that has nothing to do with it must not wait for it. So each file system that another
process or machine serves is looked at by a process of its own, all at once and before anything else
looks. One that does not come back is left behind, as nothing can end it; it holds a name meanwhile,
by which the next dry run of this user knows without another look, and so does who looks at a path
on it (`state.silent`).
"""

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xmem_slurm.descriptors import close_all_but
from xmem_slurm.sandbox.mounts import Mount
from xmem_slurm.state.silent import LOCAL, is_known, make_known, new_socket

if TYPE_CHECKING:
    import socket

SECONDS = 5.0
"""So long a look may take: a busy server answers within a second or two."""

_LOOK = ("stat", "-f")
"""What this asks for (statfs(2)) is in no cache: a server has to answer itself."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def silent(
    mounts: Sequence[Mount], ignored: frozenset[str], look: Sequence[str] = _LOOK
) -> list[Path]:
    """Return the mount points that do not answer in time; those of the kinds `ignored` are not
    looked at.

    `look` is the command that looks at one. An error is an answer, too: not allowed, gone.

    Raises:
        OSError: no process can be started.
    """
    points = {mount.point for mount in mounts if mount.kind not in LOCAL | ignored}
    silent_points = [point for point in points if is_known(str(point))]
    looks = [_begin(point, look) for point in points.difference(silent_points)]
    waiting, end = {under_way.answer: under_way for under_way in looks}, time.monotonic() + SECONDS
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))
        if not ready:
            break
        for answer in ready:
            del waiting[answer]
    for under_way in waiting.values():
        make_known(str(under_way.point), under_way.held)
        silent_points.append(under_way.point)
    for under_way in looks:
        os.close(under_way.answer)
        under_way.held.close()
    return sorted(silent_points)


class _Look(NamedTuple):
    """A process that looks at a mount point, and answers; it has a socket of ours open
    meanwhile.
    """

    point: Path
    answer: int
    held: "socket.socket"


def _begin(point: Path, look: Sequence[str]) -> _Look:
    """Have a process look at a mount point."""
    answer, end = os.pipe()
    held = new_socket()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:  # nobody's child: it may outlive us
                _look(point, look, end, held.fileno())
        finally:
            os._exit(0)
    os.close(end)
    os.waitpid(child, 0)
    return _Look(point, answer, held)


def _look(point: Path, look: Sequence[str], end: int, held: int) -> None:
    """Become the command, which holds nothing of ours but what gets a name if it never ends."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    free = max(nothing, end, held) + 1
    for number, source in enumerate((nothing, end, nothing, held)):
        os.dup2(source, number + free)
    for number in range(4):
        os.dup2(number + free, number)
    close_all_but(3)
    os.execve(
        "/bin/sh", ["sh", "-c", '"$@" >&2; printf .', "look", *look, os.fspath(point)], _ENVIRONMENT
    )
