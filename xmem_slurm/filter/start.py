"""The first step of the site-wide filter: whom the site file leaves alone waits for nothing but the reading of it."""

import os
import pwd
import sys
import tomllib

from xmem_slurm.site import coverage


def main() -> None:
    """Answer for the site file and the process id on the command line."""
    site_file, process = sys.argv[1:]
    answer(site_file, int(process))


def answer(site_file: str, process: int) -> None:
    """Print the answer for the submission of this process id, as `filter.main` does."""
    try:
        with open(site_file, "rb") as file:  # noqa: PTH123 - nothing else here needs pathlib
            tables: coverage.Tables = tomllib.load(file)
        if not coverage.has_user(tables, pwd.getpwuid(os.getuid()).pw_name):
            sys.stdout.write("end\n")
            return
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        tables = {}  # what is wrong with the file is said where it is checked
    from xmem_slurm.filter import changes  # noqa: PLC0415 - what takes time

    changes.main(site_file, process, tables)
