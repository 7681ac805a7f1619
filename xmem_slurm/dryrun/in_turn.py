"""How do several dry runs of one search go at once? Each in a child of this process, on the CPUs of one.

As many go at once as one dry run may use CPUs, for most of it is one process on one of them; they share those CPUs and
its memory. What comes later depends on nothing but what came before it, not on which of two was done first: so what is
found, and in which order, is the same another time.
"""

import os
import pickle
import random
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Generic, TypeVar

from xmem_slurm.dryrun import live_progress
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.exchange import DryRunResult, Orders
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, XmemError
from xmem_slurm.sandbox import linux
from xmem_slurm.state import signals

_T = TypeVar("_T")
Make = Callable[[DryRunOrder], DryRunResult]


def in_turn(another: Callable[[], Orders[_T] | None], make: Make, at_once: int) -> Iterator[_T]:
    """Have dry runs made for whoever is next, and yield what each returns, in that order.

    `another` is asked as soon as one may begin; None: not before the next of those under way is done. The end is when
    none is under way and there is no other one.

    Why a dry run was not made is raised where it is wanted.

    Raises:
        XmemError: as one of them does; the others end.
    """
    allowed = sorted(os.sched_getaffinity(0))
    cpus = random.sample(allowed, min(at_once, len(allowed)))
    live_progress.elsewhere(f"at most {at_once} at once")
    going = deque[_UnderWay[_T]]()
    with ExitStack() as ending:
        while True:
            while len(going) < at_once and not any(each.alone for each in going) and (orders := another()) is not None:
                going.append(_UnderWay(orders, lambda order: Child(make, order, cpus), at_once))
                ending.callback(going[-1].end)
            if not going:
                return
            while not going[0].is_done:
                children = {each.child: each for each in going if each.child is not None}
                if not children:
                    going[0].once_more()
                for child in select.select(children, [], [])[0] if children else ():
                    children[child].go_on()
            yield going.popleft().found


class _UnderWay(Generic[_T]):
    """One of several that go at once. A dry run for which its part of the memory is too little is made again, alone."""

    def __init__(self, orders: Orders[_T], begin: "Callable[[DryRunOrder], Child]", parts: int) -> None:
        self._orders, self._begin, self._parts = orders, begin, parts
        self.alone = False
        self.child: Child | None = None
        self._found: list[_T] = []
        self._want(lambda: next(orders))

    @property
    def is_done(self) -> bool:
        """Whether it wants nothing any more."""
        return bool(self._found)

    @property
    def found(self) -> _T:
        """What it returned."""
        return self._found[0]

    def go_on(self) -> None:
        """Take what came of its dry run, and begin the next one that it wants."""
        assert self.child is not None
        child, self.child = self.child, None
        try:
            result = child.result()
        except XmemError as error:
            refused = error
            self._want(lambda: self._orders.throw(refused))
            return
        if result.outcome is not None and result.outcome.stopped == "memory" and self._parts > 1 and not self.alone:
            self.alone = True
            return
        self.alone = False
        timed = replace(result, spent=Spent(result.spent.seconds, time.monotonic() - self._began))
        self._want(lambda: self._orders.send(timed))

    def once_more(self) -> None:
        """Make its dry run again, with all the memory."""
        self.child = self._begin(self._wanted)

    def end(self) -> None:
        """End what is under way."""
        if self.child is not None:
            self.child.end()

    def _want(self, order: Callable[[], DryRunOrder]) -> None:
        try:
            self._wanted, self._began = order(), time.monotonic()
        except StopIteration as end:
            self._found = [end.value]
            return
        budget = self._wanted.budget
        part = replace(budget, memory_bytes=budget.memory_bytes // self._parts)
        self.child = self._begin(replace(self._wanted, budget=part))


class Child:
    """A dry run under way in a child of this process, and with it at an end."""

    def __init__(self, make: Make, order: DryRunOrder, cpus: Collection[int]) -> None:
        self._receiving, sending = os.pipe()
        parent = os.getpid()
        self._number = os.fork()
        if self._number == 0:
            try:
                _send(sending, parent, cpus, lambda: make(order))
            finally:
                os._exit(1)
        os.close(sending)

    def fileno(self) -> int:
        """What becomes readable as it ends."""
        return self._receiving

    def result(self) -> DryRunResult:
        """Wait for its end, and return what came of it; a child that was killed has no answer, and others may have one.

        Raises:
            XmemError: as it did.
        """
        with os.fdopen(self._receiving, "rb") as file:
            text = file.read()
        self._receiving = -1
        os.waitpid(self._number, 0)
        if not text:
            return DryRunResult(NoEstimate("the process that made its dry run was killed"))
        found = pickle.loads(text)  # noqa: S301 - our own
        if isinstance(found, XmemError):
            raise found
        assert isinstance(found, DryRunResult)
        return found

    def end(self) -> None:
        """Have it clear up and end; nothing where it has ended."""
        if self._receiving >= 0:
            os.kill(self._number, signal.SIGTERM)
            os.close(self._receiving)
            os.waitpid(self._number, 0)


def _send(sending: int, parent: int, cpus: Collection[int], make: Callable[[], DryRunResult]) -> None:
    """Be the child: make the dry run on these CPUs, and send what came of it; a signal clears up first."""
    with signals.clearing_up():
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
        os.sched_setaffinity(0, cpus)
        found: Any
        try:
            found = make()
        except XmemError as error:
            found = error
        with os.fdopen(sending, "wb") as file:
            pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
