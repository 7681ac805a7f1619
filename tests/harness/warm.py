"""The job's Python, warm: a program that takes its place where a test is not of how a Python
starts."""

import shlex
import sys
from pathlib import Path

TICK = "XMEM_TEST_TICK"
"""A variable with which the probe's clock counts work: so many seconds each time that it is looked
at, which is for each batch and each step. A script then comes as far on every machine, as on one
where a step takes that long."""


def installed(python: Path, folder: Path, servers: Path, owner: int) -> Path:
    """Write the program into a new folder; return it. What it starts is found in `servers`, and
    lives as `owner` does.

    It stands beside links to what is installed beside `python`, so that its folder may go on PATH,
    too."""
    folder.mkdir()
    for name in (
        each.name for each in python.parent.iterdir() if not each.name.startswith("python")
    ):
        (folder / name).symlink_to(python.parent / name)
    servers.mkdir(mode=0o700, exist_ok=True)
    command = [
        sys.executable,
        "-IS",
        Path(__file__).with_name("warm_python.py"),
        python,
        servers,
        owner,
    ]
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, command))} "$@"\n')
    program.chmod(0o755)
    (folder / "python3").symlink_to("python")
    return program
