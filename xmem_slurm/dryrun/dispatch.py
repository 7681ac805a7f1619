"""Where is run dry what a sizing wants: here, as a Slurm step on a CPU node, or with many others as
an array job?

What a job needs to be run on is found out as one goes: another kind of GPU where it does not fit
the first (`sizing`). So jobs that are sized together go in rounds: each as far as what it wants is
known; then all that is wanted runs, at once; and again, until nothing is wanted.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from xmem_slurm.dryrun import array_job, cpu_node, engines, kept_runs, runner
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult, Orders, drive, order_to_json
from xmem_slurm.dryrun.in_turn import in_turn
from xmem_slurm.dryrun.job import OF_ONE_RUN
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import DeviceBuildError, NoEstimate, SandboxError, SlurmError, XmemError
from xmem_slurm.site.schema import DryRuns

if TYPE_CHECKING:
    from xmem_slurm.trace import Trace

MOST_ROUNDS = 20
"""A job wants another dry run for each kind of GPU in question, and for the last task of an
array."""

_REASONS = (NoEstimate, SandboxError, DeviceBuildError, SlurmError)
"""Why a job cannot be sized, which says nothing of the others."""

_T = TypeVar("_T")


def one(orders: Orders[_T], where: DryRuns) -> _T:
    """Have what is wanted run where the site wants that, and return what was made of it.

    Raises:
        SandboxError: this machine cannot throw away what the script writes; nothing was run.
        DeviceBuildError: others could write where the stand-ins are kept.
        SlurmError: a step did not start in time, was refused, or gave no answer.
    """
    return drive(orders, _maker(where))


class InTurn(Protocol):
    """Has dry runs made a few at once: see `in_turn`."""

    def __call__(self, another: Callable[[], Orders[_T] | None]) -> Iterator[_T]:
        """Yield what each returns."""


def some_at_once(where: DryRuns) -> InTurn:
    """Return who makes the dry runs of a search where the site wants them, as many at once as one
    may use CPUs.

    They share the memory of one here; on a node each has its own.
    """
    at_once = Budget().within(where).cpus
    return partial(
        in_turn, make=_maker(where), at_once=at_once, parts=at_once if where.where == "here" else 1
    )


def _maker(where: DryRuns) -> Callable[[DryRunOrder], DryRunResult]:
    make = here if where.where == "here" else lambda order: cpu_node.run(order, where)
    return kept_runs.made_or_kept(make)


def here(order: DryRunOrder) -> DryRunResult:
    """Run on this machine what is ordered, with the engine that can answer.

    Raises:
        SandboxError, DeviceBuildError: as `one` does.
    """
    spent, last, began = Spent(), DryRunResult([]), time.monotonic()

    def came(answer: "Sequence[Trace] | NoEstimate") -> DryRunResult:
        seconds = time.monotonic() - began
        return replace(last, answer=answer, spent=spent, made_in_seconds=seconds)

    def run(engine_order: DryRunOrder) -> DryRunResult:
        nonlocal spent, last
        last = runner.run(engine_order)
        spent = spent.plus(last.spent)
        return last

    try:
        return came(drive(engines.run(order), run))
    except NoEstimate as error:
        return came(error)


def together(several: Sequence[Orders[_T]], where: DryRuns) -> list[_T | XmemError]:
    """Have what each of several wants run; where the site has dry runs on its nodes, all at once,
    and no two alike.

    Returned is what each returns, or why it could not. What rounds take on the wall is no one's.
    """
    if where.where == "here":
        answered = [_or_why_not(orders) for orders in several]
        if len(answered) == 1:
            return [one(answered[0], where)]
        return list(some_at_once(where)(partial(next, iter(answered), None)))
    going = [_Going(orders) for orders in several]
    results: dict[str, DryRunResult | SlurmError] = {}
    waiting = going
    for _ in range(MOST_ROUNDS):
        for asker in waiting:
            asker.go_on(results)
        waiting = [asker for asker in waiting if asker.wanted is not None]
        if not waiting:
            break
        orders = {_key(asker.wanted): asker.wanted for asker in waiting if asker.wanted is not None}
        results |= zip(orders, _at_once(list(orders.values()), where), strict=True)
    return [asker.answer for asker in going]


class _Going(Generic[_T]):
    """One of several that wait together: what it wants next, or what it found."""

    def __init__(self, orders: Orders[_T]) -> None:
        self.orders = orders
        self.wanted: DryRunOrder | None = None
        self.answer: _T | XmemError = SlurmError(f"it wants more than {MOST_ROUNDS} dry runs")

    def go_on(self, results: Mapping[str, DryRunResult | SlurmError]) -> None:
        """Go as far as what it wants is known."""
        try:
            order = self.wanted or next(self.orders)
            while (result := results.get(_key(order))) is not None:
                if isinstance(result, SlurmError):
                    raise result
                order = self.orders.send(result)
            self.wanted = order
        except StopIteration as end:
            self.answer, self.wanted = end.value, None
        except _REASONS as error:
            self.answer, self.wanted = error, None


def _or_why_not(orders: Orders[_T]) -> Orders[_T | XmemError]:
    try:
        return (yield from orders)
    except _REASONS as error:
        return error


def _at_once(orders: Sequence[DryRunOrder], where: DryRuns) -> Sequence[DryRunResult | SlurmError]:
    """Return what came of each: what is kept of it, or one step or array job for all of which
    nothing is.
    """
    kept_results = [None if order.fresh else kept_runs.look_up(order) for order in orders]
    wanted = [order for order, kept in zip(orders, kept_results, strict=True) if kept is None]
    named = [kept_runs.named_by(order.job) for order in wanted]
    new_results = _run_on_nodes(wanted, where)
    for order, result, read in zip(wanted, new_results, named, strict=True):
        if isinstance(result, DryRunResult):
            kept_runs.keep(order, result, read)
    rest = iter(new_results)
    return [next(rest) if kept is None else kept for kept in kept_results]


def _run_on_nodes(
    orders: Sequence[DryRunOrder], where: DryRuns
) -> Sequence[DryRunResult | SlurmError]:
    if len(orders) != 1:
        return array_job.run(orders, where)
    try:
        return [cpu_node.run(orders[0], where)]
    except SlurmError as error:
        return [error]


def _key(order: DryRunOrder) -> str:
    """Return what stays the same where the same dry run is wanted again: not the time of day, nor
    that for it.
    """
    environ = {name: value for name, value in order.job.environ.items() if name not in OF_ONE_RUN}
    return order_to_json(replace(order, job=replace(order.job, environ=environ), budget=Budget()))
