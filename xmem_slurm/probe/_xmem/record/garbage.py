"""Does Python's garbage collector give GPU memory back, at a moment of its own?

Tensors in a cycle of references live until it comes. When that is hangs on how many objects the
process has made: others in a dry run, where kernels are not compiled, and in another release of
Python or of a package.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _xmem.annotations import Note

LEAST = 0.01
"""Of the peak: less is none."""


class Garbage:
    """What was given back at once, at the most. The youngest generation is left out: what is in it
    was just made.

    So is what Python's other threads collect, as a loader's or the probe's own: meanwhile the
    script's may be within torch, as in a backward pass, and give back what is no garbage.
    """

    def __init__(self) -> None:
        self._allocated: Any = None
        self._pid: int | None = None
        self._thread: int | None = None
        self._explicit_calls = 0
        self._before = self._most_freed_bytes = 0

    def watch(self, allocated: Callable[[], int]) -> None:
        """Look at each collection from now on; `allocated` says how many bytes are.

        A forked child must not ask: torch's lock may have been taken as it was forked.
        """
        self._allocated, self._pid, self._thread = allocated, os.getpid(), threading.get_ident()
        gc.callbacks.append(self._collecting)
        gc.collect = self._asked_for(gc.collect)

    def _asked_for(self, collect: Callable[..., int]) -> Callable[..., int]:
        """Return what takes the place of gc.collect: what a script asks for comes on a GPU where it
        comes here.
        """

        @functools.wraps(collect)
        def noted(*args: Any, **kwargs: Any) -> int:
            self._explicit_calls += 1
            try:
                return collect(*args, **kwargs)
            finally:
                self._explicit_calls -= 1

        return noted

    def _collecting(self, phase: str, about: Mapping[str, int]) -> None:
        if (
            about["generation"]
            and not self._explicit_calls
            and os.getpid() == self._pid
            and self._works()
        ):
            if phase == "start":
                self._before = self._allocated()
            else:
                self._most_freed_bytes = max(
                    self._most_freed_bytes, self._before - self._allocated()
                )

    def _works(self) -> bool:
        """Whether this thread is the one that CUDA began in, or one of torch's own, which its
        backward passes are in.

        threading.enumerate takes a lock, which this very thread may hold: a collection comes
        anywhere.
        """
        thread = threading.get_ident()
        registered = threading._active.get(thread)  # type: ignore[attr-defined]
        return (
            thread == self._thread
            or registered is None
            or isinstance(registered, threading._DummyThread)
        )

    def doubt(self, note: Note, peak: int) -> None:
        """Say how much it was; the peak may have it once more."""
        if self._most_freed_bytes > LEAST * peak:
            note(
                "garbage",
                "%d MiB" % (self._most_freed_bytes >> 20),
                share=self._most_freed_bytes / peak,
            )
