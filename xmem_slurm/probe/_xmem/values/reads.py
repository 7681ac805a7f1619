"""Notes where a model reads values from the GPU in its forward pass: zeros here, which may decide
shapes and ways.

So it does where an optimizer reads them in its step (LBFGS ends its search by them). Reads
elsewhere (a loss that is printed, a gradient's norm) are left out: what is allocated does not hang
on them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from _xmem import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from ctypes import CDLL
    from types import ModuleType

    from _xmem.annotations import Note

_MOST_PLACES = 8
"""Lines of forward passes that are told of, those that read most."""


class Reads:
    """The places in one process where values were read."""

    _last = threading.local()  # of the process, as the stand-ins are

    @classmethod
    def of_zeros(cls, read: Callable[[], Any]) -> tuple[Any, bool]:
        """Return what `read` reads from the GPU, and whether that was not known.

        The stand-ins know what the host copied there and no kernel followed:
        DistributedDataParallel compares the number of its parameters with that of other ranks by
        such a copy, a gather and a read, all in C++ (reducer.cpp, verify_params_across_processes).
        """
        cls._last.were_zeros = False
        return read(), cls._last.were_zeros

    def __init__(self) -> None:
        self.count = 0
        """How often values were read."""
        self._places: dict[tuple[str, int], int] = {}
        self._optimizers: dict[str, int] = {}
        self._runtime: CDLL | None = None

    def watch(self, torch: ModuleType, runtime: CDLL) -> None:
        """Have the stand-in CUDA runtime say when zeros are read; `torch` is imported, `runtime`
        mapped.
        """
        call, folder = torch.nn.Module._call_impl.__code__, os.path.dirname(torch.__file__ or "")
        step = os.path.join("torch", "optim", "")

        def read(_bytes: int) -> None:
            """Count a read, of an optimizer's step or of a forward pass."""
            self.count += 1
            self._last.were_zeros = True
            place: tuple[str, int] | None = None
            frame = sys._getframe().f_back  # none in a thread of C++
            while frame is not None and frame.f_code is not call:
                if frame.f_code.co_name == "step" and step in frame.f_code.co_filename:
                    stepping = type(frame.f_locals.get("self"))
                    # a scheduler of learning rates asks for no memory
                    if issubclass(stepping, torch.optim.Optimizer):
                        self._optimizers[stepping.__name__] = (
                            self._optimizers.get(stepping.__name__, 0) + 1
                        )
                if place is None and not frame.f_code.co_filename.startswith((folder, FOLDER)):
                    place = frame.f_code.co_filename, frame.f_lineno
                frame = frame.f_back
            if frame is not None and place is not None and torch.is_grad_enabled():
                self._places[place] = self._places.get(place, 0) + 1

        self._runtime, self._read = runtime, ctypes.CFUNCTYPE(None, ctypes.c_size_t)(read)
        runtime.xmem_on_read(self._read)

    def end(self) -> None:
        """Let go of the runtime, which may outlive the interpreter."""
        if self._runtime is not None:
            self._runtime.xmem_on_read(None)

    def doubt(self, note: Note) -> None:
        """Say which optimizers read values, and at which places models did, the most read first."""
        for name, count in list(self._optimizers.items()):
            note("optimizer-read", name, count)
        for (file, line), count in sorted(self._places.items(), key=lambda place: -place[1])[
            :_MOST_PLACES
        ]:
            note("forward-read", "%s:%d" % (os.path.basename(file), line), count)
