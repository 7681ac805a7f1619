"""Have a script's other threads go on, as they do on a GPU while that is busy with a step.

Here a step takes no time, so a thread that puts batches on the GPU ahead of the training never
fills its queue. After each of the first steps that there is such a thread it is waited for until it
asks for nothing more: the queue is full.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from _xmem.annotations import Note

STEPS = 4
"""After so many steps, from when a thread is met; later ones may find less there."""
QUIET_SECONDS = 0.05
"""Who has not asked for memory for so long waits: the time that a batch takes to be read, with some
to spare..."""
MOST_SECONDS = 1.0
"""...and at the most, after one step..."""
ALL_SECONDS = 5.0
"""...and after all of them."""


class OtherThreads:
    """Those of one process."""

    _met: weakref.WeakSet[threading.Thread]
    _idle: set[tuple[type, str | None]]

    def __init__(self) -> None:
        self._met, self._idle = weakref.WeakSet(), set()
        self._steps, self._spent, self._work_ahead = 0, 0.0, False

    def go_on(self, allocated: Callable[[], object]) -> None:
        """Wait, if there are any, until they do not change what `allocated` returns, how much was
        allocated so far.
        """
        working = [thread for thread in threading.enumerate() if self._may_work(thread)]
        if any(thread not in self._met for thread in working):
            self._met.update(working)
            self._steps = STEPS
        if not working or not self._steps or self._spent > ALL_SECONDS:
            return
        self._steps -= 1
        began, before = time.monotonic(), allocated()
        first = before
        while time.monotonic() < began + MOST_SECONDS:
            time.sleep(QUIET_SECONDS)
            after = allocated()
            if after == before:
                break
            before = after
        self._spent += time.monotonic() - began
        self._work_ahead |= before != first
        # such as those of progress bars, which each epoch has anew
        if before == first and not self._steps:
            self._idle.update(map(_work_of, working))

    def doubt(self, note: Note) -> None:
        """Say that threads work ahead: how far, on a GPU, is up to its speed."""
        if self._work_ahead:
            note("threads", "threads of the script ask for GPU memory ahead of its steps")

    def _may_work(self, thread: threading.Thread) -> bool:
        """Whether it is the script's: not torch's own, in which Python was called, nor ours."""
        ours = (
            thread in (threading.main_thread(), threading.current_thread()) or thread.name == "xmem"
        )
        return (
            not ours
            and not isinstance(thread, threading._DummyThread)
            and _work_of(thread) not in self._idle
        )


def _work_of(thread: threading.Thread) -> tuple[type, str | None]:
    """Return what tells kinds of threads apart."""
    return type(thread), getattr(getattr(thread, "_target", None), "__qualname__", None)
