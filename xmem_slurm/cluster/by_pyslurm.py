"""What is the cluster made of, by pyslurm's account, where one is installed next to us that was
made for its release?

Only ever asked in a process of its own, with a time limit: `import pyslurm` ends the process where
Slurm cannot be reached. Each release of pyslurm is for one release of Slurm.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm.cluster import client
from xmem_slurm.errors import SlurmError

_PROGRAM = Path(__file__).with_name("_ask_pyslurm.py")
_SECONDS = 20.0


class Account(NamedTuple):
    """pyslurm's version, and its nodes and partitions, each as pyslurm's own names and values."""

    version: str
    nodes: list[Mapping[str, Any]]
    partitions: list[Mapping[str, Any]]


def read(release: str, python: str | None = None) -> Account | None:
    """Ask the pyslurm of a Python, else of this one, about a cluster of this Slurm release; None
    where it has none.

    Raises:
        SlurmError: it is made for another release, says nothing in time, or nothing that can be
            read.
    """
    printed = client.run([python or sys.executable, "-I", str(_PROGRAM), release], _SECONDS)
    try:
        account = json.loads(printed)
        return Account(**account) if account else None
    except (ValueError, TypeError) as error:
        raise SlurmError(f"pyslurm: no answer that can be read ({type(error).__name__})") from error


def time_limit(minutes: int | str) -> str:
    """Write a limit as scontrol does: pyslurm has minutes, or a word."""
    if isinstance(minutes, str):
        return minutes
    days, minutes_of_day = divmod(minutes, 24 * 60)
    return f"{f'{days}-' if days else ''}{minutes_of_day // 60:02}:{minutes_of_day % 60:02}:00"
