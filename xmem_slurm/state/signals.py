"""What do signals end first? The work under way, which clears up; then this process, as they would
have.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(BaseException):
    """A signal asks us to end; past every `except Exception`, so that all is cleared away.

    Who catches it has a last word: the process ends as `clearing_up` does.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def clearing_up() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a hang-up end what runs inside first, and then this process, as they
    would have.

    The process dies of the signal: a shell says 130 of Ctrl-C, and ends a loop that we were called
    from. So it does where the exception goes astray: what raises in a destructor or a callback from
    C, Python only reports.
    """
    # Under nohup a hang-up is ignored, and stays so.
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    received: list[int] = []

    def unwind(number: int, _frame: FrameType | None) -> None:
        for ending in heeded:
            signal.signal(ending, signal.SIG_IGN)  # what is under way already must not be cut short
        received.append(number)
        raise Signalled(number)

    # None comes while only some have this handler.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    before = {number: signal.signal(number, unwind) for number in heeded}
    report, sys.unraisablehook = sys.unraisablehook, _report_others
    try:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    except Signalled:
        pass
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.signal(received[0], signal.SIG_DFL)
            os.kill(os.getpid(), received[0])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _report_others(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_type is not Signalled:
        sys.__unraisablehook__(unraisable)
