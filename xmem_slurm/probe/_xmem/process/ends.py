"""Makes the ways out of a process lead past the recorder: os._exit, sys.exit, exit, SIGTERM,
exceptions, a fork.

The ordinary end is atexit's (`imports`). What kills a process outright leaves the recorder's last
periodic write.
"""

from __future__ import annotations

import builtins
import linecache
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback

from _xmem import FOLDER

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any, NoReturn

    from _xmem.annotations import Watcher

_LIBRARY = sysconfig.get_paths()["stdlib"]
_ASKED = re.compile(
    r"(?:KeyError: '|environment variable )"
    r"((?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))\b"
)
"""In what os.environ and torch raise (torch/distributed/rendezvous.py, 2.4 to 2.15) where a
launcher's is not set."""
MOST_CAUSES = 50
"""So many are followed: errors that a script chains itself may go round in a circle."""
_ONLY_IF_ASKED = re.compile(
    r"KeyError: '(SLURM_(?:NTASKS|NPROCS|(CPUS_PER_TASK|NTASKS_PER_NODE)))'"
)
"""In what os.environ raises for what Slurm sets where a job says it (sbatch(1), 22.05 to 25.11)."""


def hook(recorder: Watcher) -> None:
    """Let `recorder` know when this process, or a forked child of it, ends on its own or is asked
    to.
    """
    os.register_at_fork(after_in_child=recorder.in_child)
    leave, raise_exit = os._exit, sys.exit

    def noted_leave(status: int) -> NoReturn:
        recorder.finish("exit", "os._exit(%s)" % (status,) if status else None)
        leave(status)

    def noted_exit(status: Any = None) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            exit_line = "SystemExit: %s" % (status,) if status else None
            recorder.asked_to_exit(
                exit_line and _located(exit_line, traceback.walk_stack(sys._getframe(1)))
            )
        raise_exit(status)

    os._exit, sys.exit = noted_leave, noted_exit
    # of exit() and quit(), which the site module has put there
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__name__ == "Quitter":
        quitter.__call__ = lambda _self, status=None: noted_exit(status)

    def terminated(_signum: int, _frame: FrameType | None) -> None:
        try:
            recorder.finish("signal")
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, terminated)


def last() -> BaseException | None:
    """Return the exception that ended the script, or None.

    The interpreter leaves it in sys.last_value before it calls sys.excepthook, which scripts
    replace.
    """
    return getattr(sys, "last_value", None)


def uncaught() -> str | None:
    """Return the exception that ended the script, in one line, with the line of the user's that led
    to it; or None.
    """
    error = last()
    if error is None:
        return None
    frames = list(traceback.walk_tb(sys.last_traceback))[::-1]
    words = one_line(error)
    if frames and not str(error).strip():  # an assertion without words: its line says more
        words += ": " + linecache.getline(frames[0][0].f_code.co_filename, frames[0][1]).strip()
    return _located(words + _for_want_of(error), frames)


def _for_want_of(error: BaseException) -> str:
    """Return in words what could not be imported, where an exception came of that (transformers'
    lazy modules).
    """
    root = error
    for _ in range(MOST_CAUSES):
        root = root.__cause__ or root
    return ": " + one_line(root) if root is not error and isinstance(root, ImportError) else ""


def _located(words: str, frames: Iterable[tuple[FrameType, int]]) -> str:
    """Add file and line of the innermost of `frames` that is of the user's own code, where there is
    one.

    `frames` are (frame, line), the innermost first.
    """
    for frame, line in frames:
        if is_users(frame):
            return "%s (%s:%d)" % (words, _short(frame.f_code.co_filename), line)
    return words


def is_users(frame: FrameType) -> bool:
    """Whether a frame is of the user's own code."""
    file = frame.f_code.co_filename
    generated = file.startswith("<") and frame.f_globals.get("__name__") != "__main__"
    return not (generated or "-packages" in file or file.startswith((_LIBRARY, FOLDER)))


def _short(file: str) -> str:
    """Return a path as one writes it in the working directory."""
    try:
        inside = os.path.commonpath((file, os.getcwd())) == os.getcwd()
    except (OSError, ValueError):  # the directory is gone; one of the two is relative
        return file
    return os.path.relpath(file) if inside else file


def one_line(error: BaseException) -> str:
    """Return an exception's type and the first line of what it says; of a data loader's, what its
    worker raised.
    """
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "worker" in lines[0] and len(lines) > 1:
        # torch._utils.ExceptionWrapper: the traceback, the exception at its end
        return lines[-1].strip()
    if not lines[0]:
        return type(error).__name__
    return _explained("%s: %s" % (type(error).__name__, lines[0]))


def _explained(error: str) -> str:
    """Return the error of a script; what to do about it where that is for a variable which Slurm
    has not set.
    """
    of_slurm = _ONLY_IF_ASKED.search(error)
    if of_slurm is not None and "SLURM_PROCID" in os.environ and of_slurm[1] not in os.environ:
        option = "--" + (of_slurm[2] or "NTASKS").lower().replace("_", "-")
        return "%s is not set: Slurm does that only where the job says %s" % (of_slurm[1], option)
    name = _ASKED.search(error)
    if name is None or name[1] in os.environ or "SLURM_PROCID" not in os.environ:
        return error
    return (
        "%s is not set, and Slurm does not set it: export MASTER_ADDR and MASTER_PORT in the batch "
        "script, and in each"
        " task RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID, or start it "
        "with torchrun"
    ) % name[1]


def kill_workers() -> None:
    """End the processes that `multiprocessing` started here, as it does itself at an ordinary exit.

    Data loaders notice that their parent is gone only after seconds, and until then hold its stdout
    open.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        child.kill()
