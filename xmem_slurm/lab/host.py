"""What this machine gives a lab: its user, address, free ports, and paths that are short enough."""

import contextlib
import os
import pwd
import random
import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from xmem_slurm.errors import LabError
from xmem_slurm.lab.programs import Version
from xmem_slurm.lab.settings import Surroundings

# sockaddr_un.sun_path (unix(7)), and the longest path that Slurm makes of the folder:
# SlurmdSpoolDir/NODE_JOB.STEP.
_SOCKET_PATH_BYTES = 108
_JOB_AND_STEP = "_4294967295.4294967295"

# Below the range that the kernel gives to outgoing connections (32768 on, ip(7)), so nothing takes
# a port by accident.
_PORTS = range(20000, 32000)


def surroundings(
    folder: Path,
    names: Sequence[Sequence[str]],
    release: str,
    version: Version,
    *,
    accounting: bool,
) -> Surroundings:
    """Return what the configuration of a lab started here and now must say; the ports are free at
    this moment.
    """
    # Slurm can be told to listen on one address only: the one that the host's name stands for.
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = ""
    loopback_only = address.startswith("127.")
    wanted = ["slurmctld", *(f"slurmd.{name}" for members in names for name in members)]
    if accounting:
        wanted += ["slurmdbd", "mariadbd"]
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return Surroundings(
        folder=folder,
        user=user,
        address=address if loopback_only else "127.0.0.1",
        loopback_only=loopback_only,
        ports=dict(zip(wanted, _free_ports(len(wanted)), strict=True)),
        release=release,
        version=version,
        accounting=accounting,
        password=secrets.token_hex(16) if accounting else "",
    )


def _free_ports(count: int) -> list[int]:
    free: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(free) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))  # noqa: S104 - only to see that nobody has it on any address
            free.append(port)
    if len(free) < count:
        raise LabError(
            f"only {len(free)} of the {count} TCP ports needed are free between {_PORTS[0]} and "
            f"{_PORTS[-1]}"
        )
    return free


def check_names(folder: Path, nodes: Sequence[str]) -> None:
    """Refuse what Slurm would fail on later, in words that nobody could act on.

    Raises:
        LabError: a character in the folder's path that slurm.conf cannot hold, or too long a path.
    """
    if not re.fullmatch(r"[A-Za-z0-9/._+-]+", str(folder)):
        raise LabError(
            f"{folder}: slurm.conf takes no such character in a path; name another folder with "
            "XMEM_LAB"
        )
    longest = max(nodes, key=len)
    needed = len(f"{folder}/spool/{longest}/{longest}{_JOB_AND_STEP}")
    if needed >= _SOCKET_PATH_BYTES:
        raise LabError(
            f"{folder} is {needed - _SOCKET_PATH_BYTES + 1} bytes too long: a socket's path in it "
            "must stay below"
            f" {_SOCKET_PATH_BYTES}; name a shorter folder with XMEM_LAB"
        )
