"""How does this process become sbatch, so that neither sbatch, the shell nor the job can tell who was here before?

exec keeps the process: its number, folder, limits, open files, terminal, and whom its exit code and signals go to. What
Python changed in it is undone here:

- Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so across exec (`_PySignal_Init`, Python/pylifecycle.c).
- A script that could be read only once, from standard input or a pipe, is put back where it was read.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_MARK = "xmem-slurm-was-here"
"""An open file without content or path: unlike a variable it stays with sbatch, and no job inherits it."""


class _Signalled(BaseException):
    """A signal asks us to end; past every `except Exception`, so that all is cleared away on the way out."""


def become(program: Path, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by sbatch; `argv` is without the command itself, which goes by the name of sbatch."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):  # nobody reads it any more
                stream.flush()
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if _may_have_filter(environ):
        os.set_inheritable(os.memfd_create(_MARK), True)
    os.execve(program, ["sbatch", *argv], dict(environ))


def _may_have_filter(environ: Mapping[str, str]) -> bool:
    """Whether Slurm may have a Lua cli_filter here: it lies beside slurm.conf (cli_filter_plugins(8)).

    Where that is, only Slurm knows: many a site has built it with another sysconfdir.
    """
    named = environ.get("SLURM_CONF")
    places = [Path(named)] if named else [Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf")]
    found = [place for place in places if place.exists()]
    return not found or any(place.with_name("cli_filter.lua").exists() for place in found)


def die_of_broken_pipe() -> None:
    """Let a reader that has read enough (`| head`) end this process as it ends sbatch."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def is_marked(process: int) -> bool:
    """Whether this process was xsbatch before it became sbatch: a site's filter need not look at its job again."""
    links = Path("/proc", str(process), "fd").iterdir()
    return any(str(link.readlink()).startswith(f"/memfd:{_MARK}") for link in links if link.is_symlink())


def replay(content: bytes, descriptor: int) -> None:
    """Make `content` what is read from this descriptor, from its first byte."""
    memory = os.memfd_create("xsbatch")
    with os.fdopen(memory, "wb") as file:
        file.write(content)
        file.flush()
        os.lseek(memory, 0, os.SEEK_SET)
        os.dup2(memory, descriptor)


@contextmanager
def clearing_up() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a hang-up end what runs inside first, and then this process, as they would have.

    The process dies of the signal: a shell says 130 of Ctrl-C, and ends a loop that we were called from. So it does
    where the exception goes astray: what raises in a destructor or a callback from C, Python only reports.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # not under nohup
    received: list[int] = []

    def unwind(number: int, _frame: FrameType | None) -> None:
        for each in heeded:
            signal.signal(each, signal.SIG_IGN)  # what is under way already must not be cut short
        received.append(number)
        raise _Signalled

    before = {number: signal.signal(number, unwind) for number in heeded}
    report, sys.unraisablehook = sys.unraisablehook, _report_others
    try:
        yield
    except _Signalled:
        pass
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.signal(received[0], signal.SIG_DFL)
            os.kill(os.getpid(), received[0])


def _report_others(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_type is not _Signalled:
        sys.__unraisablehook__(unraisable)
