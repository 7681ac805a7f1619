"""How a lab comes up, is asked after, and goes: the order of its daemons and the life of its folder."""

import contextlib
import fcntl
import json
import os
import pwd
import random
import re
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xmem_slurm.errors import LabError
from xmem_slurm.lab import accounting as accounts
from xmem_slurm.lab import processes, programs, settings
from xmem_slurm.lab.settings import Surroundings
from xmem_slurm.site.schema import Site

_RECORD = "lab.json"
_FORMAT = 1

# sockaddr_un.sun_path (unix(7)), and the longest path that Slurm makes of the folder: SlurmdSpoolDir/NODE_JOB.STEP.
_SOCKET_PATH_BYTES = 108
_JOB_AND_STEP = "_4294967295.4294967295"

# Below the range that the kernel gives to outgoing connections (32768 on, ip(7)), so nothing takes a port by accident.
_PORTS = range(20000, 32000)

# For a busy machine and a site of many nodes: a start takes about a second, and a daemon that ends is seen at once.
_START_SECONDS = 90.0
_POLL_SECONDS = 0.03


@dataclass(frozen=True)
class Lab:
    """A lab that runs. `nodes` are Slurm's names; `slurm` is the release, such as `22.05.8`."""

    folder: Path
    nodes: tuple[str, ...]
    slurm: str
    accounting: bool


@dataclass(frozen=True)
class Status:
    """`daemons` says of each whether it runs; `nodes` gives each node's state in Slurm's words. Both empty: no lab."""

    folder: Path
    daemons: Mapping[str, bool]
    nodes: Mapping[str, str]

    @property
    def running(self) -> bool:
        """Whether there is a lab and all its daemons run."""
        return bool(self.daemons) and all(self.daemons.values())


@dataclass(frozen=True)
class _Record:
    """What the folder says of its lab, in `lab.json`."""

    site: object
    accounting: bool
    slurm: str
    nodes: tuple[str, ...]
    daemons: tuple[str, ...]


def default_folder() -> Path:
    """Return the folder of this user's lab: XMEM_LAB, or one in /tmp.

    Not below XDG_RUNTIME_DIR: that goes away with the last login, and other users' jobs could not reach it. Not below
    TMPDIR either: paths of sockets must be short.
    """
    return Path(os.environ.get("XMEM_LAB") or f"/tmp/xmem-lab-{os.getuid()}")  # noqa: S108 - _claim checks its owner


def up(site: Site, folder: Path, *, accounting: bool = False) -> Lab:
    """Bring up a cluster like `site` in `folder`, every node idle; at once if it is there already.

    A lab some of whose daemons died is ended and started anew, its queue lost.

    Raises:
        LabError: programs are missing, the folder is not the lab's, another site's lab runs there, or a daemon failed;
            nothing of the failed lab is left, and the message has the daemon's last words.
    """
    folder = _normal(folder)
    found = programs.find(accounting=accounting)
    release, version = programs.slurm_version(found["slurmctld"])
    names = [_hostnames(found["scontrol"], group.names) for group in site.nodes]
    _check_names(folder, [name for members in names for name in members])
    with _claim(folder):
        record = _read(folder)
        if record is not None:
            if all(processes.alive(folder, daemon) for daemon in record.daemons):
                if (record.site, record.accounting) != (site.model_dump(mode="json"), accounting):
                    raise LabError(
                        f"another lab (site or accounting differ) runs in {folder}; `xmem-slurm lab down` ends it"
                    )
                return Lab(folder, record.nodes, record.slurm, record.accounting)
            _clear(folder)
        try:
            return _start(site, names, found, _surroundings(folder, names, release, version, accounting))
        except BaseException as error:
            _clear(folder)
            folder.rmdir()
            if isinstance(error, OSError | subprocess.CalledProcessError):
                raise LabError(f"the lab did not start: {error}") from error
            raise


def down(folder: Path) -> None:
    """End everything that runs in the lab, jobs included, and remove the folder; nothing there is fine.

    Raises:
        LabError: the folder is not a lab's or not this user's, or a process does not end.
    """
    folder = _normal(folder)
    if not folder.exists():
        return
    with _claim(folder):
        _clear(folder)
        folder.rmdir()


def status(folder: Path) -> Status:
    """Return which daemons run and the nodes' states (empty if slurmctld does not answer)."""
    folder = _normal(folder)
    record = _read(folder)
    if record is None:
        return Status(folder, {}, {})
    daemons = {daemon: bool(processes.alive(folder, daemon)) for daemon in record.daemons}
    nodes = _node_states(folder) if daemons["slurmctld"] and daemons["munged"] else {}
    return Status(folder, daemons, nodes)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that point Slurm's commands at the lab. munge's socket needs none: slurm.conf names it.

    Raises:
        LabError: no lab runs there.
    """
    if not status(folder).running:
        raise LabError(f"no lab runs in {_normal(folder)}; `xmem-slurm lab up` starts one")
    return {"SLURM_CONF": str(_normal(folder) / "slurm.conf")}


def _start(site: Site, names: Sequence[Sequence[str]], found: Mapping[str, str], around: Surroundings) -> Lab:
    folder = around.folder
    nodes = tuple(name for members in names for name in members)
    daemons = ["munged", *(["mariadbd", "slurmdbd"] if around.accounting else []), "slurmctld"]
    daemons += [f"slurmd.{node}" for node in nodes]
    record = {
        "format": _FORMAT,
        "site": site.model_dump(mode="json"),
        "accounting": around.accounting,
        "slurm": around.release,
        "nodes": nodes,
        "daemons": daemons,
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=1))
    _lay_out(site, names, around)

    munge = folder / "run" / "munge"
    processes.start(
        folder,
        "munged",
        [
            found["munged"],
            "--foreground",
            "--force",  # it warns of a group-writable parent folder, instead of refusing
            f"--key-file={munge}.key",
            f"--socket={munge}.socket",
            f"--pid-file={munge}d.pid",
            f"--log-file={folder / 'log' / 'munged.log'}",
            f"--seed-file={munge}.seed",
            "--group-update-time=-1",  # reads no group database: no credential here is for a group
        ],
    )
    _wait(folder, ["munged"], lambda: munge.with_suffix(".socket").is_socket())
    if around.accounting:
        accounts.create_database(found, around)
        processes.start(folder, "mariadbd", accounts.mariadbd_command(found, around))
        _wait(folder, ["mariadbd"], lambda: _listens(around, "mariadbd"))
        accounts.grant(found, around)
        processes.start(folder, "slurmdbd", [found["slurmdbd"], "-D"])
        _wait(folder, ["slurmdbd"], lambda: _listens(around, "slurmdbd"))
        accounts.add_cluster(found, folder, site.name)
    processes.start(folder, "slurmctld", [found["slurmctld"], "-D"])
    _wait(folder, ["slurmctld"], lambda: _listens(around, "slurmctld"))
    for node in nodes:
        processes.start(folder, f"slurmd.{node}", [found["slurmd"], "-D", "-N", node])
    _wait(folder, daemons, lambda: _node_states(folder) == dict.fromkeys(nodes, "idle"))
    return Lab(folder, nodes, around.release, around.accounting)


def _lay_out(site: Site, names: Sequence[Sequence[str]], around: Surroundings) -> None:
    """Write everything that must lie in the folder before the first daemon starts."""
    folder = around.folder
    # munge wants its key and logs private, and its socket in a folder that everyone may enter.
    for name, mode in {"run": 0o755, "spool": 0o755, "dev": 0o755, "log": 0o700, "state": 0o700, "pid": 0o700}.items():
        (folder / name).mkdir(mode=mode)
    for name, text in settings.files(site, names, around).items():
        _write(folder / name, text.encode(), 0o600 if name == "slurmdbd.conf" else 0o644)
    _write(folder / "run" / "munge.key", secrets.token_bytes(128), 0o400)
    for index in range(settings.device_count(site)):
        (folder / "dev" / f"nvidia{index}").symlink_to("/dev/null")
    for node in (node for members in names for node in members):
        (folder / "spool" / node).mkdir(mode=0o755)
    if around.accounting:
        (folder / "mysql").mkdir(mode=0o700)


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _surroundings(
    folder: Path, names: Sequence[Sequence[str]], release: str, version: programs.Version, accounting: bool
) -> Surroundings:
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
    return free


def _hostnames(scontrol: str, host_list: str) -> list[str]:
    """Have Slurm itself expand `a[1-2]`. It needs no cluster for that, but it does insist on a slurm.conf."""
    with tempfile.NamedTemporaryFile("w", suffix="-slurm.conf") as conf:
        conf.write("ClusterName=lab\nSlurmctldHost=localhost\n")
        conf.flush()
        done = subprocess.run(
            [scontrol, "show", "hostnames", host_list],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"SLURM_CONF": conf.name},
        )
    if done.returncode or not done.stdout.split():
        raise LabError(f"Slurm does not understand the site's node names {host_list!r}: {done.stderr.strip()}")
    return done.stdout.split()


def _check_names(folder: Path, nodes: Sequence[str]) -> None:
    if len(set(nodes)) != len(nodes):
        twice = sorted({name for name in nodes if nodes.count(name) > 1})
        raise LabError(f"the site has these nodes twice: {', '.join(twice)}")
    if not re.fullmatch(r"[A-Za-z0-9/._+-]+", str(folder)):
        raise LabError(f"{folder}: slurm.conf takes no such character in a path; name another folder with XMEM_LAB")
    longest = max(nodes, key=len)
    needed = len(f"{folder}/spool/{longest}/{longest}{_JOB_AND_STEP}")
    if needed >= _SOCKET_PATH_BYTES:
        raise LabError(
            f"{folder} is {needed - _SOCKET_PATH_BYTES + 1} bytes too long: a socket's path in it must stay below"
            f" {_SOCKET_PATH_BYTES}; name a shorter folder with XMEM_LAB"
        )


def _normal(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


@contextlib.contextmanager
def _claim(folder: Path) -> Iterator[None]:
    """Make the folder if it is not there, check that it is ours, and keep other `up` and `down` out of it meanwhile."""
    while True:
        try:
            folder.mkdir(mode=0o755, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LabError(f"the lab's folder cannot be made: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            held = os.fstat(handle)
            # Whoever held the lock before may have removed the folder.
            if not folder.exists() or folder.stat().st_ino != held.st_ino:
                continue
            if held.st_uid != os.getuid() or stat.S_IMODE(held.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
                raise LabError(f"{folder} is not this user's alone; name another folder with XMEM_LAB")
            if any(folder.iterdir()) and not (folder / _RECORD).is_file():
                raise LabError(f"{folder} is not empty and not a lab's; name another folder with XMEM_LAB")
            yield
            return
        finally:
            os.close(handle)


def _clear(folder: Path) -> None:
    """End the lab's processes and empty its folder. The record goes last: until then the folder is known as a lab's."""
    processes.end_all(folder)
    for entry in sorted(folder.iterdir(), key=lambda one: one.name == _RECORD):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _read(folder: Path) -> _Record | None:
    try:
        record = json.loads((folder / _RECORD).read_text())
        return _Record(
            record["site"], record["accounting"], record["slurm"], tuple(record["nodes"]), tuple(record["daemons"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        # Half written by a start that was killed: a lab with nothing known to run.
        return _Record(None, False, "", (), ("munged", "slurmctld"))


def _node_states(folder: Path) -> dict[str, str]:
    """Return each node's state; `*` behind it is Slurm's sign for a node that does not answer."""
    sinfo = programs.find(accounting=False)["sinfo"]
    try:
        done = subprocess.run(
            [sinfo, "--noheader", "--Node", "--format=%N %T"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
            env=os.environ | {"SLURM_CONF": str(folder / "slurm.conf")},
        )
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def _listens(around: Surroundings, daemon: str) -> bool:
    address = "127.0.0.1" if daemon == "mariadbd" else around.address
    with socket.socket() as probe:
        return probe.connect_ex((address, around.ports[daemon])) == 0


def _wait(folder: Path, daemons: Sequence[str], ready: Callable[[], bool]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not ready():
        dead = next((daemon for daemon in daemons if processes.alive(folder, daemon) is False), None)
        if dead is not None:
            raise LabError(f"{dead} ended at once: {processes.last_words(folder, dead)}")
        if time.monotonic() > until:
            said = processes.last_words(folder, daemons[-1])
            raise LabError(f"{daemons[-1]} was not ready after {_START_SECONDS:.0f} s; its last line: {said}")
        time.sleep(_POLL_SECONDS)
