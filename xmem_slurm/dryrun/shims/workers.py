"""How a launcher of a dry run becomes one of its ranks, or several of them at once: in place of all
of them.

The first rank is run, unless others are asked for (XMEM_RUN_RANKS, as "0,3/4": ranks 0 and 3 of 4;
`dryrun/ranks.py`): then each launcher starts those of its workers that are, or hold, one of them. A
launcher within a task of srun or mpirun finds in XMEM_TASK which one that is ("1/2"). XMEM_LAUNCHER
tells the outermost launchers of a script apart, XMEM_NODE the nodes that processes stand on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

NOT_FOUND = 127
"""What a shell ends with that has not found a command (POSIX, 2.8.2)."""


def chosen_of(total: int, candidates: range) -> list[int]:
    """Return which of the workers `candidates`, of `total` in all, are started: those that hold a
    rank that is asked for.
    """
    ranks, _, world = os.environ.get("XMEM_RUN_RANKS", "").partition("/")
    wanted = {int(rank) * total // int(world) for rank in ranks.split(",")} if world else set()
    return sorted(wanted & set(candidates)) or [candidates[0]]


def at_once(commands: Sequence[Callable[[], NoReturn]]) -> NoReturn:
    """Become the only one of these, or start all of them, wait, and end as the one that ended
    worst.
    """
    os.environ.setdefault("XMEM_LAUNCHER", str(os.getpid()))
    if len(commands) == 1:
        commands[0]()
    children = []
    for command in commands:
        child = os.fork()
        if child == 0:
            command()
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    raise SystemExit(max([code if code >= 0 else 128 - code for code in codes], default=0))


def note(text: str) -> None:
    """Leave a line for the runner: why an estimate is missing or doubtful."""
    with (Path(os.environ["XMEM_TRACE_DIR"]) / "notes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(text) + "\n")


def find(command: str) -> str | None:
    """Find a program as the shell would, past our own folder."""
    if "/" in command:
        return command if os.access(command, os.X_OK) and not Path(command).is_dir() else None
    for folder in os.environ["PATH"].split(os.pathsep):
        candidate = Path(folder or ".") / command
        if (
            folder != os.environ["XMEM_SHIMS"]
            and os.access(candidate, os.X_OK)
            and candidate.is_file()
        ):
            return str(candidate)
    return None


def not_found(command: str) -> NoReturn:
    """End as a shell does that has no such program."""
    sys.stderr.write(f"{command}: command not found\n")
    raise SystemExit(NOT_FOUND)


def become(words: Sequence[str]) -> NoReturn:
    """Become a command: a launcher or a container by way of its shim."""
    # A script may have emptied the environment.
    shim = Path(os.environ.get("XMEM_SHIMS", "/nowhere"), words[0])
    has_shim = (
        "/" not in words[0] and words[0] not in ("srun", "sbatch") and os.access(shim, os.X_OK)
    )
    program = str(shim) if has_shim else find(words[0])
    if program is None:
        not_found(words[0])
    os.execv(program, [*words])
