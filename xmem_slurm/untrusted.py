"""How is a file read that a job may have written?

With bounds: it may be a FIFO, a link, a gigabyte of zeros in a kilobyte of gzip, or such JSON as
nobody writes. What may stand in the file of a trace is said by `trace` and `trace_schema`.
"""

import gzip
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

from xmem_slurm.units import MIB

MOST_BYTES = 256 * MIB
"""Of one file, unpacked; a trace of torch's largest models has some 5 MiB."""
MOST_VALUES = 8_000_000
"""Lists and objects in one file: each takes 20 times its text, once it is read."""
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What reading such a file may raise."""


class Allowance:
    """What all files of one dry run may have together, unpacked, in bytes."""

    def __init__(self, bytes_left: int = 2 * MOST_BYTES) -> None:
        self.bytes_left = bytes_left


def read(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is in a regular file of our own that is no link.

    Raises:
        OSError: there is none.
        ValueError: it is something else, another user's, or larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise ValueError("no file of ours")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes} bytes")
    return content


def read_json(path: Path, allowance: Allowance) -> Any:
    """Return the JSON in a file (gzip); its size is taken off `allowance`.

    Raises one of DAMAGE.
    """
    most_bytes = min(MOST_BYTES, allowance.bytes_left)
    with gzip.GzipFile(fileobj=io.BytesIO(read(path, most_bytes))) as file:
        text = file.read(most_bytes + 1)
    allowance.bytes_left -= len(text)
    if len(text) > most_bytes:
        raise ValueError(f"larger than {most_bytes} bytes when unpacked")
    if text.count(b"[") + text.count(b"{") > MOST_VALUES:
        raise ValueError("too many lists in it")
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} in it")
