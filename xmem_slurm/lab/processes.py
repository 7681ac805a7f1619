"""Which processes are the lab's own, how one is started, and how all of them end.

Note [Whose process is it] A pid in a file may be anybody's by now, so no process is judged by its
pid. A process belongs to a lab if - its environment has `XMEM_LAB_FOLDER=FOLDER`: only `start` sets
that, and jobs do not inherit it
  from slurmd; or
- its environment has the lab's SLURM_CONF and a SLURMD_NODENAME: it was started by a job of the lab
  (SLURM_CONF alone is not enough: the user's own shell has it under `lab exec`); or
- it is called slurmstepd and has a log of the lab open: slurmstepd overwrites its environment with
  its title; or
- one of its ancestors does.
Environments of other users' processes can be read by root only, and only root's labs have such
processes.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from xmem_slurm.errors import LabError

FOLDER_MARK = "XMEM_LAB_FOLDER"
DAEMON_MARK = "XMEM_LAB_DAEMON"

_POLITE_SECONDS = 2.0
_LAST_SECONDS = 5.0
_POLL_SECONDS = 0.02


def start(folder: Path, name: str, command: Sequence[str]) -> None:
    """Start a daemon in a session of its own, its output in `log/NAME.out` and its pid in
    `pid/NAME`.

    `command` must stay in the foreground. The shell in between writes the pid and becomes the
    daemon; `setsid --fork` leaves no child behind that the caller would have to wait for.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    marked = inherited | {
        "SLURM_CONF": str(folder / "slurm.conf"),
        FOLDER_MARK: str(folder),
        DAEMON_MARK: name,
    }
    (folder / "pid" / name).unlink(missing_ok=True)
    with (folder / "log" / f"{name}.out").open("ab") as output:
        subprocess.run(
            [
                "setsid",
                "--fork",
                "/bin/sh",
                "-c",
                'echo $$ >"$0" && exec "$@"',
                str(folder / "pid" / name),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=marked,
            cwd=folder,
            check=True,
        )


def alive(folder: Path, name: str) -> bool | None:
    """Tell whether the daemon runs; None while nobody can say: it has no pid yet, or is in the
    middle of an exec.
    """
    try:
        process = psutil.Process(int((folder / "pid" / name).read_text()))
        marks = process.environ()
    except (FileNotFoundError, ValueError):
        return None
    except psutil.Error:
        return False
    if not _running(process):
        return False
    if not marks:  # the kernel shows no environment while it replaces one
        return None
    return marks.get(FOLDER_MARK) == str(folder) and marks.get(DAEMON_MARK) == name


def last_words(folder: Path, name: str) -> str:
    """Return the line of the daemon's output that most likely says why it ended."""
    try:
        lines = [
            line.strip()
            for line in (folder / "log" / f"{name}.out").read_text(errors="replace").splitlines()
        ]
    except FileNotFoundError:
        return "it left no log"
    lines = [line for line in lines if line]
    grave = [line for line in lines if "fatal" in line.lower()]
    return (grave or lines or ["it left an empty log"])[-1]


def end_all(folder: Path) -> None:
    """End every process of the lab, job steps included: politely, then not.

    Raises:
        LabError: some are still there after seven seconds (a process stuck in the kernel).
    """
    polite_until = time.monotonic() + _POLITE_SECONDS
    until = polite_until + _LAST_SECONDS
    members: set[psutil.Process] = set()
    terminated: set[psutil.Process] = set()
    empty_looks = 0
    while empty_looks < 2:  # one look can miss a process that is in the middle of an exec
        # What was seen once stays known: a task whose parents are gone may have nothing left that
        # tells whose it is.
        members |= _members(folder)
        running = {process for process in members if _running(process)}
        empty_looks = 0 if running else empty_looks + 1
        if time.monotonic() > until and running:
            listed = sorted(f"{process.pid} {_name(process)}" for process in running)
            raise LabError(f"processes of the lab in {folder} do not end: {', '.join(listed)}")
        for process in running:
            # slurmstepd ignores SIGTERM, and has nobody left to report to.
            with suppress(psutil.Error):  # it ended meanwhile
                if time.monotonic() > polite_until or _name(process).startswith("slurmstepd"):
                    process.kill()
                elif process not in terminated:
                    terminated.add(process)
                    process.terminate()
        time.sleep(_POLL_SECONDS)


def _members(folder: Path) -> set[psutil.Process]:
    """See Note [Whose process is it]."""
    mine = psutil.Process()
    spared = {mine, *mine.parents()}
    members: set[psutil.Process] = set()
    for process in psutil.process_iter():
        if process not in spared and _belongs(process, folder):
            members.add(process)
            with suppress(psutil.Error):
                members.update(process.children(recursive=True))
    return members - spared


def _belongs(process: psutil.Process, folder: Path) -> bool:
    try:
        environment = process.environ()
        if environment.get(FOLDER_MARK) == str(folder):
            return True
        if (
            environment.get("SLURM_CONF") == str(folder / "slurm.conf")
            and "SLURMD_NODENAME" in environment
        ):
            return True
        if not _name(process).startswith("slurmstepd"):
            return False
        return any(Path(file.path).is_relative_to(folder / "log") for file in process.open_files())
    except (psutil.Error, OSError):
        return False


def _running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
