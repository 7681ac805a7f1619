"""How does a dry run go on while this process waits for others, too? In a child of it, which sends back what came of it."""

import os
import pickle
import signal
from collections.abc import Callable, Collection
from typing import Any

from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.errors import XmemError
from xmem_slurm.sandbox import linux
from xmem_slurm.state import signals


class Beside:
    """A dry run under way in a child, on these CPUs. It ends when this process does. It forks: one thread is best."""

    def __init__(self, run: Callable[[], DryRunResult], cpus: Collection[int]) -> None:
        self._receiving, sending = os.pipe()
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            try:
                _be_child(run, cpus, parent, sending)
            finally:
                os._exit(1)
        os.close(sending)

    def fileno(self) -> int:
        """What becomes readable as it ends."""
        return self._receiving

    def result(self) -> DryRunResult:
        """Wait for its end, and return what came of it.

        Raises:
            XmemError: as what was run raised it, or the child was killed.
        """
        with os.fdopen(self._receiving, "rb") as file:
            text = file.read()
        self._receiving = -1
        os.waitpid(self._child, 0)
        found: DryRunResult | XmemError = pickle.loads(text) if text else XmemError("a dry run was killed")  # noqa: S301
        if isinstance(found, XmemError):
            raise found
        return found

    def end(self) -> None:
        """Have it end at once; nothing where it has ended."""
        if self._receiving >= 0:
            os.kill(self._child, signal.SIGTERM)
            os.close(self._receiving)
            os.waitpid(self._child, 0)


def _be_child(run: Callable[[], DryRunResult], cpus: Collection[int], parent: int, sending: int) -> None:
    """Run it, and send what came of it; a signal clears up first."""
    with signals.clearing_up():
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
        os.sched_setaffinity(0, cpus)
        found: Any
        try:
            found = run()
        except XmemError as error:
            found = error
        with os.fdopen(sending, "wb") as file:
            pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
