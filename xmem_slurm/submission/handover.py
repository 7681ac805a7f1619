"""How does this process become sbatch, so that neither sbatch, the shell nor the job can tell who
was here before?

exec keeps the process: its number, folder, limits, open files, terminal, and whom its exit code and
signals go to. What Python changed in it is undone here:

- Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so across exec (`_PySignal_Init`,
  Python/pylifecycle.c).
- A script that could be read only once, from standard input or a pipe, is put back where it was
  read.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_MARK = "xmem-slurm-was-here"
"""An open file without content or path: unlike a variable it stays with sbatch, and no job inherits
it."""


def become(program: Path, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by sbatch; `argv` is without the command itself, which goes by the name
    of sbatch.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):  # nobody reads it any more
                stream.flush()
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    for descriptor in mark(environ):
        os.set_inheritable(descriptor, True)
    os.execve(program, ["sbatch", *argv], dict(environ))


def mark(environ: Mapping[str, str]) -> list[int]:
    """Open what tells a site's filter that this was xsbatch, if there may be a filter; return its
    descriptor.
    """
    return [os.memfd_create(_MARK)] if _may_have_filter(environ) else []


def _may_have_filter(environ: Mapping[str, str]) -> bool:
    """Whether Slurm may have a Lua cli_filter here: it lies beside slurm.conf
    (cli_filter_plugins(8)).

    Where that is, only Slurm knows: many a site has built it with another sysconfdir.
    """
    named = environ.get("SLURM_CONF")
    places = [Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf")]
    if named:
        places = [Path(named)]
    present = [place for place in places if place.exists()]
    return not present or any(place.with_name("cli_filter.lua").exists() for place in present)


def die_of_broken_pipe() -> None:
    """Let a reader that has read enough (`| head`) end this process as it ends sbatch."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def is_marked(process: int) -> bool:
    """Whether this process was xsbatch before it became sbatch: a site's filter need not look at
    its job again.
    """
    links = Path("/proc", str(process), "fd").iterdir()
    return any(
        str(link.readlink()).startswith(f"/memfd:{_MARK}") for link in links if link.is_symlink()
    )


def replay(content: bytes, descriptor: int) -> None:
    """Make `content` what is read from this descriptor, from its first byte."""
    memory = os.memfd_create("xsbatch")
    with os.fdopen(memory, "wb") as file:
        file.write(content)
        file.flush()
        os.lseek(memory, 0, os.SEEK_SET)
        os.dup2(memory, descriptor)
