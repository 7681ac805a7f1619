"""How do several dry runs of one search go at once? Each in a child of this process, on the CPUs of
one.

As many go at once as one dry run may use CPUs, for most of it is one process on one of them; they
share those CPUs and its memory. What comes later depends on nothing but what came before it, not on
which of two was done first: so what is found, and in which order, is the same another time.
"""

import os
import pickle
import random
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
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


def in_turn(
    another: Callable[[], Orders[_T] | None], make: Make, at_once: int, parts: int
) -> Iterator[_T]:
    """Have dry runs made for whoever is next, and yield what each returns, in that order.

    Each has one of so many `parts` of the memory; one for which that is too little is made again
    with all of it, alone.

    `another` is asked as soon as one may begin; None: not before the next of those under way is
    done. The end is when none is under way and there is no other one.

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
            while (
                len(going) < at_once
                and not any(under_way.alone for under_way in going)
                and (orders := another()) is not None
            ):
                going.append(_UnderWay(orders, lambda order: Child(make, order, cpus), parts))
                ending.callback(going[-1].end)
            if not going:
                return
            while not going[0].is_done:
                children = {
                    under_way.child: under_way for under_way in going if under_way.child is not None
                }
                if not children:
                    going[0].begin()
                for child in select.select(children, [], [])[0] if children else ():
                    children[child].go_on()
            yield going.popleft().result


class _UnderWay(Generic[_T]):
    """One of several that go at once."""

    def __init__(
        self, orders: Orders[_T], begin: "Callable[[DryRunOrder], Child]", parts: int
    ) -> None:
        self._wants, self._begin = _once_more_alone(orders, parts), begin
        self.child: Child | None = None
        self._results: list[_T] = []
        self._want(partial(next, self._wants))

    @property
    def is_done(self) -> bool:
        """Whether it wants nothing any more."""
        return bool(self._results)

    @property
    def result(self) -> _T:
        """What it returned."""
        return self._results[0]

    def go_on(self) -> None:
        """Take what came of its dry run, and begin the next one that it wants."""
        assert self.child is not None
        child, self.child = self.child, None
        try:
            result = child.result()
        except XmemError as error:
            self._want(partial(self._wants.throw, error))
        else:
            self._want(partial(self._wants.send, result))

    def begin(self) -> None:
        """Begin what it wants."""
        self.child = self._begin(self._wanted)

    def end(self) -> None:
        """End what is under way."""
        if self.child is not None:
            self.child.end()

    def _want(self, go_on: Callable[[], tuple[DryRunOrder, bool]]) -> None:
        self.alone = False
        try:
            self._wanted, self.alone = go_on()
        except StopIteration as end:
            self._results = [end.value]
            return
        if not self.alone:
            self.begin()


def _once_more_alone(
    orders: Orders[_T], parts: int
) -> Generator[tuple[DryRunOrder, bool], DryRunResult, _T]:
    """Want each dry run with its part of the memory; and one for which that is too little with all
    of it, alone.
    """
    go_on = partial(next, orders)
    while True:
        try:
            order = go_on()
        except StopIteration as end:
            value: _T = end.value
            return value
        began, budget = time.monotonic(), order.budget
        try:
            result = yield (
                replace(order, budget=replace(budget, memory_bytes=budget.memory_bytes // parts)),
                False,
            )
            seconds = result.spent.seconds
            if parts > 1 and result.stopped == "memory":
                result = yield order, True
                seconds += result.spent.seconds
        except XmemError as error:
            go_on = partial(orders.throw, error)
        else:
            go_on = partial(
                orders.send, replace(result, spent=Spent(seconds, time.monotonic() - began))
            )


class Child:
    """A dry run under way in a child of this process, and with it at an end."""

    def __init__(self, make: Make, order: DryRunOrder, cpus: Collection[int]) -> None:
        self._budgeted = Spent(order.budget.seconds)
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
        """Wait for its end, and return what came of it.

        A child that was killed has no answer, and others may have one; it is taken to have spent
        all that it might, as whoever kills dry runs is not to be given dozens.

        Raises:
            XmemError: as it did.
        """
        with os.fdopen(self._receiving, "rb") as file:
            text = file.read()
        self._receiving = -1
        os.waitpid(self._number, 0)
        try:
            result = pickle.loads(text)  # noqa: S301 - our own
        except (EOFError, pickle.UnpicklingError):
            return DryRunResult(
                NoEstimate("the process that made its dry run was killed"), self._budgeted
            )
        if isinstance(result, XmemError):
            raise result
        assert isinstance(result, DryRunResult)
        return result

    def end(self) -> None:
        """Have it clear up and end; nothing where it has ended."""
        if self._receiving >= 0:
            os.kill(self._number, signal.SIGTERM)
            os.close(self._receiving)
            os.waitpid(self._number, 0)


def _send(
    sending: int, parent: int, cpus: Collection[int], make: Callable[[], DryRunResult]
) -> None:
    """Be the child: make the dry run on these CPUs, and send what came of it; a signal clears up
    first.
    """
    with signals.clearing_up():
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
        os.sched_setaffinity(0, cpus)
        result: Any
        try:
            result = make()
        except XmemError as error:
            result = error
        except Exception as error:  # ours to be told of, and no reason to lose what others found
            result = DryRunResult(NoEstimate(f"{type(error).__name__}: {error}"))
        with os.fdopen(sending, "wb") as file:
            pickle.dump(result, file, pickle.HIGHEST_PROTOCOL)
