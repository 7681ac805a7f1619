"""The first step of the site-wide filter: whom the site file leaves alone waits for nothing but the
reading of it.
"""

import sys
import time
import tomllib
from math import inf

from xmem_slurm.site import coverage
from xmem_slurm.slurm import submitter


def main() -> None:
    """Answer for the site file and the process id on the command line.

    After these an installed hook has when it began, by /proc/uptime, and how many seconds it waits.
    """
    site_file, process, *times = sys.argv[1:]
    began, seconds = _waiting(*times)
    answer(site_file, int(process), began, seconds)


def _waiting(began: str = "", seconds: str = "inf") -> tuple[float, float]:
    """Return when the hook began, by the monotonic clock, and how many seconds it waits; a hook may
    not say.
    """
    now = time.monotonic()
    try:
        with open("/proc/uptime", encoding="ascii") as file:  # noqa: PTH123 - nothing else here needs pathlib
            return now - max(0.0, float(file.read().split()[0]) - float(began)), float(seconds)
    except (OSError, ValueError):
        return now, float(seconds)


def answer(site_file: str, process: int, began: float | None = None, seconds: float = inf) -> None:
    """Print the answer for the submission of this process id, as `changes.main` does; who asks
    begins now.
    """
    began = time.monotonic() if began is None else began
    try:
        with open(site_file, "rb") as file:  # noqa: PTH123
            tables: coverage.Tables = tomllib.load(file)
        if not coverage.has_user(tables, submitter.name()):
            sys.stdout.write("end\n")
            return
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        tables = {}  # what is wrong with the file is said where it is checked
    from xmem_slurm.filter import changes  # noqa: PLC0415 - what takes time

    changes.main(site_file, process, tables, began, seconds)
