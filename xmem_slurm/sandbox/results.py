"""What comes out of a dry run? The regular files that are directly in its folder of results, if
they are few and small.

They are copied by process 1 of the sandbox once nothing else is left in it, so that nothing changes
under its hands; a FIFO, a link or a folder stays behind. What is in the files is for their readers
to doubt (`untrusted`).
"""

import os
import re
import shutil
import stat

from xmem_slurm.units import MIB

MOST_FILES = 2000
"""Each process that imports torch leaves one."""
MOST_INODES = 20_000
"""The ranks of a job have mail in folders beside."""
MOST_BYTES = 256 * MIB
"""In all. A trace has 0.05 to 5 MiB."""

_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


def hand_out(source: int, target: int) -> str | None:
    """Copy what may come out from one open folder to another; say what was too much, if something
    was.

    Raises:
        OSError: it cannot be written there.
    """
    bytes_left = MOST_BYTES
    names = [name for name in os.listdir(source) if _NAME.fullmatch(name)]
    if len(names) > MOST_FILES:
        return f"{len(names)} files as its traces, and {MOST_FILES} are read"
    for name in names:
        try:
            source_file = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source
            )
        except OSError:  # a link, or a file that it made unreadable
            continue
        try:
            facts = os.fstat(source_file)
            if not stat.S_ISREG(facts.st_mode):
                continue
            bytes_left -= facts.st_size
            if bytes_left < 0:
                return f"more than {MOST_BYTES // MIB} MiB of traces"
            target_file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)
            with (
                os.fdopen(source_file, "rb", closefd=False) as file,
                os.fdopen(target_file, "wb") as copy,
            ):
                shutil.copyfileobj(file, copy)
        finally:
            os.close(source_file)
    return None
