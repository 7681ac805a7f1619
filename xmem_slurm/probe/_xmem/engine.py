"""What both engines are: one object for each process that imports torch, which watches it and
writes what it saw.
"""

import functools
import json
import os
import threading
import time

from _xmem import doubts, patches, plots
from _xmem.offline import weights
from _xmem.offline.downloads import Downloads
from _xmem.process import alive, description, ends, stand_ins, times
from _xmem.process.budget import TimeLeft
from _xmem.process.limits import ShareLimits
from _xmem.process.says import Says
from _xmem.process.steps import Steps


class ProbeEngine:
    """The process at hand; `environ` has the XMEM_* variables of the dry run, `told` the times that
    its script is told.

    An engine names its rows of `patches` as `table`, says by `_parts` what hooks in there (torch is
    imported then), and begins by `_hooked` what needs the hooks.
    """

    table = ()

    def __init__(self, environ, told):
        self._environ, self._times = environ, told
        self._budget = TimeLeft(environ)
        self._torch = self._runtime = None
        self._build = ("unknown", None)
        self._limits = ShareLimits(environ)
        self.says = Says(environ, self._budget.spent)
        self._downloads = Downloads(environ["XMEM_TRACE_DIR"])
        self._away = set()
        self._begin()

    def _begin(self):
        """Start as a process that has seen nothing: at first, and in a forked child."""
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._file = os.path.join(
            self._environ["XMEM_TRACE_DIR"], "%d-%d" % (self._pid, time.monotonic_ns())
        )
        self._error = self._exit = None
        self._finished = False
        self._steps = Steps()

    # -- around `import torch` ---------------------------------------------------------------------

    def knows_torch(self):
        """Whether torch was imported in this process."""
        return self._torch is not None

    def _map_stand_ins(self, folder):
        """Map the stand-in CUDA libraries for the torch in `folder`, whose build is known."""
        self._runtime = stand_ins.map_stand_ins(
            folder, json.loads(self._environ["XMEM_DEVICE_BUILD"])
        )

    def torch_failed(self, error):
        """`import torch` raised; the job will say so itself, or try again."""
        self._error = ends.one_line(error)
        self.write("failed")
        self._error = None

    def after_torch(self, torch):
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

    def steps_counted(self, register, _owner):
        """Have torch's optimizers tell of their steps."""
        register(self._after_step)
        return register

    def backward(self, backward, _owner):
        """Around torch.autograd.backward."""

        @functools.wraps(backward)
        def wrapped(*args, **kwargs):
            with self._within_backward():
                return backward(*args, **kwargs)

        return wrapped

    # -- the end of a process ----------------------------------------------------------------------

    def asked_to_exit(self, error):
        """Note what sys.exit was given: the error of the script, if it does not catch that."""
        self._exit = error

    def _is_over(self):
        """Whether there is nothing to finish, or it is not this process's."""
        return self._torch is None or self._finished or self._pid != os.getpid()

    def leave(self, state):
        """End the process, which has shown what it can, or has no time left."""
        self.finish(state)
        self._exit_at_once(0)

    def give_up(self, why):
        """End the process, of which there will be no estimate."""
        self._error = why
        self.write("failed")
        self._finished = True
        self._exit_at_once(1)

    def _exit_at_once(self, code):
        try:
            ends.kill_workers()
        finally:
            os._exit(code)

    def _described(self, state, settings, ranks):
        """Return what stands in every trace and recording: of which process it is, and how that
        ended.
        """
        return {
            **description.described(self._environ, self._build, settings, *ranks),
            "state": state,
            "error": self._error,
        }

    def _doubts(self, parts):
        """Return what is doubted, in the form of a trace; `parts` say what hangs on the moment."""
        return doubts.rows([*parts, self._downloads, self._limits, self._times])
