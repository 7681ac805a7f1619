"""What both engines are: one object for each process that imports torch, which watches it and
writes what it saw.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from _xmem import doubts, patches, plots
from _xmem.dynamo import Dynamo
from _xmem.offline import weights
from _xmem.offline.downloads import Downloads
from _xmem.process import alive, description, ends, stand_ins, times
from _xmem.process.budget import TimeLeft
from _xmem.process.limits import ShareLimits
from _xmem.process.says import Says
from _xmem.process.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from ctypes import CDLL
    from types import ModuleType

    from _xmem.annotations import Doubting, Environ, Function, Optimizer
    from _xmem.process.times import Times


class ProbeEngine:
    """The process at hand; `environ` has the XMEM_* variables of the dry run, `job_times` the times
    that its script is told.

    An engine names its rows of `patches` as `table`, says by `_parts` what hooks in there (torch is
    imported then), and begins by `_hooked` what needs the hooks.
    """

    table: tuple[patches.Patch, ...] = ()

    def __init__(self, environ: Environ, job_times: Times) -> None:
        self._environ, self._times = environ, job_times
        self._budget = TimeLeft(environ)
        self._torch: Any = None  # until it is imported
        self._runtime: CDLL | None = None
        self._build = stand_ins.TorchBuild("unknown", None)
        self._limits = ShareLimits(environ)
        self.says = Says(environ, self._budget.spent)
        self._downloads = Downloads(environ["XMEM_TRACE_DIR"])
        self._away: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        """Start as a process that has seen nothing: at first, and in a forked child."""
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._file = os.path.join(
            self._environ["XMEM_TRACE_DIR"], "%d-%d" % (self._pid, time.monotonic_ns())
        )
        self._error: str | None = None
        self._exit: str | None = None
        self._finished = False
        self._steps = Steps()

    # -- what each engine has of its own -----------------------------------------------------------

    def before_torch(self, folder: str) -> None:
        """Be ready for the torch in `folder`, of a build that is known, which is about to be
        imported.
        """
        patches.apply(patches.FIRST, {"dynamo": Dynamo()}, self._build.torch)
        self.write("importing")

    def _parts(self) -> dict[str, Any]:
        """Return what hooks in, by the names of `patches`."""
        raise NotImplementedError

    def _hooked(self) -> None:
        """Begin what needs the hooks."""
        raise NotImplementedError

    def _within_backward(self) -> AbstractContextManager[None]:
        """Return a context for a backward pass."""
        raise NotImplementedError

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        """Look at what a step of an optimizer left."""
        raise NotImplementedError

    def in_child(self) -> None:
        """Forget the parent's run, in a forked child."""
        raise NotImplementedError

    def finish(self, state: str, error: str | None = None) -> None:
        """Write what was seen for the last time."""
        raise NotImplementedError

    def write(self, state: str) -> None:
        """Write what was seen so far, under `state`."""
        raise NotImplementedError

    # -- around `import torch` ---------------------------------------------------------------------

    def knows_torch(self) -> bool:
        """Whether torch was imported in this process."""
        return self._torch is not None

    def _map_stand_ins(self, folder: str) -> None:
        """Map the stand-in CUDA libraries for the torch in `folder`, whose build is known."""
        self._runtime = stand_ins.map_stand_ins(
            folder, json.loads(self._environ["XMEM_DEVICE_BUILD"])
        )

    def torch_failed(self, error: BaseException) -> None:
        """`import torch` raised; the job will say so itself, or try again."""
        self._error = ends.one_line(error)
        self.write("failed")
        self._error = None

    def after_torch(self, torch: ModuleType) -> None:
        """Hook in; without what is essential this process ends here, as nothing would be known of
        it.
        """
        self._torch = torch
        parts = {"engine": self, "alive": alive, "limits": self._limits, **self._parts()}
        parts.update(downloads=self._downloads, weights=weights, plots=plots)
        try:
            self._away = patches.apply(self.table + patches.OFFLINE, parts, torch.__version__)
        except patches.CannotRecordError as error:
            self.give_up(str(error))
        self._hooked()
        times.have_read(torch)
        ends.hook(self)
        self.says("running the script")
        self.write("running")

    def steps_counted(self, register: Function, _owner: object) -> Function:
        """Have torch's optimizers tell of their steps."""
        register(self._after_step)
        return register

    def backward(self, backward: Function, _owner: object) -> Function:
        """Around torch.autograd.backward."""

        @functools.wraps(backward)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._within_backward():
                return backward(*args, **kwargs)

        return wrapped

    # -- the end of a process ----------------------------------------------------------------------

    def asked_to_exit(self, error: str | None) -> None:
        """Note what sys.exit was given: the error of the script, if it does not catch that."""
        self._exit = error

    def _is_over(self) -> bool:
        """Whether there is nothing to finish, or it is not this process's."""
        return self._torch is None or self._finished or self._pid != os.getpid()

    def leave(self, state: str) -> None:
        """End the process, which has shown what it can, or has no time left."""
        self.finish(state)
        self._exit_at_once(0)

    def give_up(self, why: str) -> None:
        """End the process, of which there will be no estimate."""
        self._error = why
        self.write("failed")
        self._finished = True
        self._exit_at_once(1)

    def _exit_at_once(self, code: int) -> None:
        try:
            ends.kill_workers()
        finally:
            os._exit(code)

    def _described(
        self, state: str, settings: str | None, ranks: tuple[int, int]
    ) -> dict[str, Any]:
        """Return what stands in every trace and recording: of which process it is, and how that
        ended.
        """
        return {
            **description.described(self._environ, self._build, settings, *ranks),
            "state": state,
            "error": self._error,
        }

    def _doubts(self, parts: Iterable[Doubting]) -> list[doubts.DoubtRow]:
        """Return what is doubted, in the form of a trace; `parts` say what hangs on the moment."""
        return doubts.rows([*parts, self._downloads, self._limits, self._times])
