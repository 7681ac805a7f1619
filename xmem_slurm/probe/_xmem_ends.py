"""Makes the ways out of a process lead past the recorder: os._exit, sys.exit, exit, SIGTERM, exceptions, a fork.

The ordinary end is atexit's (`_xmem_import`). What kills a process outright leaves the recorder's last periodic write.
"""

import builtins
import os
import signal
import sys
import threading
import traceback


def hook(recorder):
    """Let `recorder` know when this process, or a forked child of it, ends on its own or is asked to."""
    os.register_at_fork(after_in_child=recorder.in_child)
    leave, raise_exit = os._exit, sys.exit

    def noted_leave(status):
        recorder.finish("exit", "os._exit(%s)" % (status,) if status else None)
        leave(status)

    def noted_exit(status=None):
        if threading.current_thread() is threading.main_thread():
            recorder.asked_to_exit("SystemExit: %s" % (status,) if status else None)
        raise_exit(status)

    os._exit, sys.exit = noted_leave, noted_exit
    quitter = type(getattr(builtins, "exit", None))  # of exit() and quit(), which the site module has put there
    if quitter.__name__ == "Quitter":
        quitter.__call__ = lambda _self, status=None: noted_exit(status)

    def terminated(_signum, _frame):
        recorder.finish("signal")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminated)


def uncaught():
    """Return the exception that ended the script, in one line, or None.

    The interpreter leaves it in sys.last_value before it calls sys.excepthook, which scripts replace.
    """
    error = getattr(sys, "last_value", None)
    if error is None or str(error).strip():
        return None if error is None else one_line(error)
    raised = traceback.extract_tb(sys.last_traceback)[-1:]  # an assertion without words: its line says more
    return "; ".join([one_line(error), *("%s:%d: %s" % (each.filename, each.lineno, each.line) for each in raised)])


def one_line(error):
    """Return an exception's type and the first line of what it says; of a data loader's, what its worker raised."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "worker" in lines[0] and len(lines) > 1:
        return lines[-1].strip()  # torch._utils.ExceptionWrapper: the traceback, the exception at its end
    return "%s: %s" % (type(error).__name__, lines[0]) if lines[0] else type(error).__name__


def kill_workers():
    """End the processes that `multiprocessing` started here, as it does itself at an ordinary exit.

    Data loaders notice that their parent is gone only after seconds, and until then hold its stdout open.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        child.kill()
