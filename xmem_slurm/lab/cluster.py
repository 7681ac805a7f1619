"""How a lab comes up, is asked after, and goes: the order of its daemons."""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xmem_slurm.errors import LabError
from xmem_slurm.lab import accounting as accounts
from xmem_slurm.lab import folder as ground
from xmem_slurm.lab import host, processes, programs, settings
from xmem_slurm.lab.settings import Surroundings
from xmem_slurm.site import loading
from xmem_slurm.site.schema import Site
from xmem_slurm.slurm import hostlist

_RECORDS = "records"
# For a busy machine and a site of many nodes: a start takes about a second, and a daemon that ends
# is seen at once.
_START_SECONDS = 90.0
_POLL_SECONDS = 0.03
_SINFO_SECONDS = 10.0


@dataclass(frozen=True)
class Lab:
    """A lab that runs. `nodes` are Slurm's names."""

    folder: Path
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """Whether a lab is up, and of what it is made.

    `daemons` says of each whether it runs; `nodes` gives each node's state in Slurm's words. Both
    empty: no lab at all.
    """

    folder: Path
    running: bool
    daemons: Mapping[str, bool]
    nodes: Mapping[str, str]


def up(
    site: Site, folder: Path, *, accounting: bool = False, hooks: Mapping[str, str] | None = None
) -> Lab:
    """Bring up a cluster like `site` in `folder`, every node idle; at once if it is there already.

    `hooks` has the text of `cli_filter.lua` and `job_submit.lua`, where Slurm is to have them. A
    lab some of whose daemons died, or whose start was killed, is ended and started anew, its queue
    lost.

    Raises:
        LabError: programs are missing, the folder is not the lab's, another site's lab runs there,
            or a daemon failed; nothing of the failed lab is left, and the message has the daemon's
            last words.
    """
    folder = ground.normal(folder)
    paths = programs.find(accounting=accounting)
    release, version = programs.slurm_version(paths["slurmctld"])
    names = [hostlist.expand(group.names) for group in site.nodes]
    host.check_names(folder, [name for members in names for name in members])
    with ground.claim(folder):
        running = _running(folder)
        if running is not None:
            wanted = (site.model_dump(mode="json"), accounting, tuple(hooks or ()))
            if (running.site, running.accounting, running.hooks) != wanted:
                raise LabError(
                    f"another lab (site, accounting or hooks differ) runs in {folder}; `xmem-slurm "
                    "lab down` ends it"
                )
            return Lab(folder, running.nodes)
        try:
            ground.clear(folder)
            around = host.surroundings(folder, names, release, version, accounting=accounting)
            return _start(site, names, paths, replace(around, hooks=hooks or {}))
        except BaseException as error:
            ground.clear(folder)
            folder.rmdir()
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise LabError(f"the lab did not start: {error}") from error
            raise


def down(folder: Path) -> None:
    """End everything that runs in the lab, jobs included, and remove the folder; nothing there is
    fine.

    Raises:
        LabError: the folder is not a lab's or not this user's, or a process does not end.
    """
    folder = ground.normal(folder)
    if not folder.exists():
        processes.end_all(folder)  # someone may have removed the folder under a running lab
        return
    with ground.claim(folder):
        ground.clear(folder)
        folder.rmdir()


def status(folder: Path) -> Status:
    """Return which daemons run, and the nodes' states (none if slurmctld does not answer)."""
    folder = ground.normal(folder)
    record = ground.read_record(folder)
    if record is None:
        return Status(folder, running=False, daemons={}, nodes={})
    daemons = {daemon: bool(processes.alive(folder, daemon)) for daemon in record.daemons}
    answers = daemons["slurmctld"] and daemons["munged"]
    nodes = _node_states(folder, programs.find(accounting=False)["sinfo"]) if answers else {}
    return Status(
        folder, running=record.ready and all(daemons.values()), daemons=daemons, nodes=nodes
    )


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that point Slurm's commands at the lab. munge's socket needs none:
    slurm.conf names it.

    Raises:
        LabError: no lab runs there.
    """
    folder = ground.normal(folder)
    if _running(folder) is None:
        raise LabError(f"no lab runs in {folder}; `xmem-slurm lab up` starts one")
    return {"SLURM_CONF": str(folder / "slurm.conf")}


def records(folder: Path) -> Path:
    """Return where xmem-slurm keeps this user's records while they work with the lab (as
    XDG_STATE_HOME).
    """
    return ground.normal(folder) / _RECORDS / str(os.geteuid())


def _running(folder: Path) -> ground.Record | None:
    record = ground.read_record(folder)
    if record is None or not record.ready:
        return None
    return record if all(processes.alive(folder, daemon) for daemon in record.daemons) else None


def _start(
    site: Site, names: Sequence[Sequence[str]], paths: Mapping[str, str], around: Surroundings
) -> Lab:
    """Write the folder and start every daemon, each after those it needs; return the lab once all
    nodes are idle.

    Raises:
        LabError: one did not start in time; says its last words.
    """
    folder = around.folder
    nodes = tuple(name for members in names for name in members)
    slurmds = {f"slurmd.{node}": [paths["slurmd"], "-D", "-N", node] for node in nodes}
    daemons = (
        "munged",
        *(("mariadbd", "slurmdbd") if around.accounting else ()),
        "slurmctld",
        *slurmds,
    )
    record = ground.Record(
        ready=False,
        site=site.model_dump(mode="json"),
        accounting=around.accounting,
        nodes=nodes,
        daemons=daemons,
        hooks=tuple(around.hooks),
    )
    ground.write_record(folder, record)
    _lay_out(site, names, around)

    processes.start(folder, "munged", _munged_command(paths, folder))
    _wait(folder, ["munged"], (folder / "run" / "munge.socket").is_socket)
    if around.accounting:
        accounts.create_database(paths, around)
        processes.start(folder, "mariadbd", accounts.mariadbd_command(paths, around))
        _wait(folder, ["mariadbd"], lambda: _listens(around, "mariadbd"))
        accounts.grant(paths, around)
        processes.start(folder, "slurmdbd", [paths["slurmdbd"], "-D"])
        _wait(folder, ["slurmdbd"], lambda: _listens(around, "slurmdbd"))
        accounts.add_cluster(paths, folder, site.name)
    processes.start(folder, "slurmctld", [paths["slurmctld"], "-D"])
    _wait(folder, ["slurmctld"], lambda: _listens(around, "slurmctld"))
    for daemon, command in slurmds.items():
        processes.start(folder, daemon, command)
    _wait(
        folder,
        daemons,
        lambda: _node_states(folder, paths["sinfo"]) == dict.fromkeys(nodes, "idle"),
    )
    ground.write_record(folder, replace(record, ready=True))
    return Lab(folder, nodes)


def _lay_out(site: Site, names: Sequence[Sequence[str]], around: Surroundings) -> None:
    """Write everything that must lie in the folder before the first daemon starts."""
    folder = around.folder
    # munge wants its key and logs private, and its socket in a folder that everyone may enter.
    modes = {"run": 0o755, "spool": 0o755, "dev": 0o755, "log": 0o700, "state": 0o700, "pid": 0o700}
    modes[settings.TRACES] = modes[_RECORDS] = 0o1777
    if around.accounting:
        modes["mysql"] = 0o700
    for name, mode in modes.items():
        ground.make(folder / name, mode)
    gpus = loading.option_gpus(site, loading.load_catalogue())
    modes_of_files = {"slurmdbd.conf": 0o600, "task_prolog.sh": 0o755}
    for name, text in settings.files(site, gpus, names, around).items():
        ground.write(folder / name, text.encode(), modes_of_files.get(name, 0o644))
    ground.write(folder / "run" / "munge.key", secrets.token_bytes(128), 0o400)
    for index in range(settings.device_count(site)):
        (folder / "dev" / f"nvidia{index}").symlink_to("/dev/null")
    for node in (node for members in names for node in members):
        ground.make(folder / "spool" / node, 0o755)


def _munged_command(paths: Mapping[str, str], folder: Path) -> list[str]:
    run = folder / "run"
    return [
        paths["munged"],
        "--foreground",
        # a folder that some group may write to, above the lab, is worth a warning, not a refusal
        "--force",
        f"--key-file={run / 'munge.key'}",
        f"--socket={run / 'munge.socket'}",
        f"--pid-file={run / 'munged.pid'}",
        f"--log-file={folder / 'log' / 'munged.log'}",
        f"--seed-file={run / 'munge.seed'}",
        "--group-update-time=-1",  # reads no group database: no credential here is for a group
    ]


def _node_states(folder: Path, sinfo: str) -> dict[str, str]:
    """Return each node's state; `*` behind it is Slurm's sign for a node that does not answer."""
    try:
        completed = subprocess.run(
            [sinfo, "--noheader", "--Node", "--format=%N %T"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SINFO_SECONDS,
            env=os.environ | {"SLURM_CONF": str(folder / "slurm.conf")},
        )
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split(maxsplit=1) for line in completed.stdout.splitlines())


def _listens(around: Surroundings, daemon: str) -> bool:
    address = "127.0.0.1" if daemon == "mariadbd" else around.address
    with socket.socket() as probe:
        return probe.connect_ex((address, around.ports[daemon])) == 0


def _wait(folder: Path, daemons: Sequence[str], ready: Callable[[], bool]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not ready():
        dead = next(
            (daemon for daemon in daemons if processes.alive(folder, daemon) is False), None
        )
        if dead is not None:
            raise LabError(f"{dead} ended at once: {processes.last_words(folder, dead)}")
        if time.monotonic() > until:
            last_line = processes.last_words(folder, daemons[-1])
            raise LabError(
                f"{daemons[-1]} was not ready after {_START_SECONDS:.0f} s; its last line: "
                f"{last_line}"
            )
        time.sleep(_POLL_SECONDS)
