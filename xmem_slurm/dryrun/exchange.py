"""What passes between who wants dry runs and who makes them: orders one way, results the other, and
both as text.

Whoever wants dry runs is a generator (`Orders`): it yields an order, and is sent what came of it.
So it knows nothing of where and when they are made, and many can wait at once (`dispatch`).
"""

import json
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, SlurmError, UnusedGpu, XmemError
from xmem_slurm.sandbox.sandbox import Outcome
from xmem_slurm.trace import File, Trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """What came of an order: one trace a process that imported torch, or why there is none; and
    what it cost.

    `outcome` is how the script ended; None where that was on another machine, or at another time.
    `stopped` names the limit that ended it, as in `Outcome`, wherever and whenever that was.
    `made_in_seconds` are those on the wall that it took then: of what is kept, `spent` has none.
    """

    answer: Sequence[Trace] | NoEstimate
    spent: Spent = Spent()  # noqa: RUF009 - a tuple
    outcome: Outcome | None = None
    stopped: str | None = None
    made_in_seconds: float = 0.0

    @property
    def traces(self) -> Sequence[Trace]:
        """The traces.

        Raises:
            NoEstimate: there are none.
        """
        if isinstance(self.answer, NoEstimate):
            raise self.answer
        return self.answer


Orders = Generator[DryRunOrder, DryRunResult, T]
"""Wants dry runs, one after the other, and returns what it made of them."""


def drive(orders: Orders[T], run: Callable[[DryRunOrder], DryRunResult]) -> T:
    """Have all that is wanted run, and return what was made of it. Time on the wall that passes
    between counts, too.

    Why a dry run was not made is raised where it is wanted.
    """
    try:
        order, since = next(orders), time.monotonic()
        while True:
            try:
                result = run(order)
            except XmemError as error:
                order, since = orders.throw(error), time.monotonic()
                continue
            now = time.monotonic()
            spent, since = Spent(result.spent.seconds, now - since), now
            order = orders.send(replace(result, spent=spent))
    except StopIteration as end:
        value: T = end.value
        return value


class SharedBudget:
    """One budget for several dry runs, what they have spent of it, and in how many seconds on the
    wall they were made, be it at another time.
    """

    def __init__(self, whole: Budget) -> None:
        self.whole, self.spent = whole, Spent()
        self.made_in_seconds = 0.0

    @property
    def left(self) -> Budget:
        """What the next may cost."""
        return self.whole.less(self.spent)

    def run(self, order: DryRunOrder, seconds: float | None = None) -> Orders[Sequence[Trace]]:
        """Want a dry run with what is left, or with so many seconds of it; return its traces.

        Raises:
            NoEstimate: there are none.
        """
        left = self.left
        result = yield replace(
            order, budget=left if seconds is None else replace(left, seconds=seconds)
        )
        self.spent = self.spent.plus(result.spent)
        self.made_in_seconds += result.made_in_seconds
        return result.traces


_ORDER, _TRACES = TypeAdapter(DryRunOrder), TypeAdapter(list[Trace])
_NO_ESTIMATE = TypeAdapter(tuple[str, list[File] | None, bool, bool, bool])
_STOPPED = TypeAdapter(str | None)


def order_to_json(order: DryRunOrder) -> str:
    """Return an order as text. What is no text in UTF-8 (a name of a file, a variable) stays as it
    is.
    """
    return json.dumps(asdict(order), default=_plain)


def order_from_json(text: str) -> DryRunOrder:
    """Read an order.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    raw = json.loads(text)
    job = {**raw["job"], "script": bytes.fromhex(raw["job"]["script"])}
    return _ORDER.validate_python({**raw, "job": job})


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.model_dump() if isinstance(value, BaseModel) else os.fspath(value)


def result_to_json(result: DryRunResult | XmemError) -> str:
    """Return what came of an order as text; an error is why it was not run."""
    if isinstance(result, XmemError):
        return json.dumps({"refused": str(result)})
    content: dict[str, Any] = {
        "seconds": result.spent.seconds,
        "stopped": result.stopped,
        "made_in_seconds": result.made_in_seconds,
    }
    if isinstance(result.answer, NoEstimate):
        error = result.answer
        content[type(error).__name__] = [
            str(error),
            error.files,
            error.on_any_gpu,
            error.fails,
            error.busy,
        ]
    else:
        content["traces"] = _TRACES.dump_python(list(result.answer), mode="json")
    return json.dumps(content)


def result_from_json(text: bytes, place: str) -> DryRunResult:
    """Read what came of an order in this place.

    Raises:
        SlurmError: it was not run, or this is no answer.
    """
    try:
        answer = json.loads(text)
        if "refused" in answer:
            raise SlurmError(f"{place}: {answer['refused']}")
        came = partial(
            DryRunResult,
            spent=Spent(float(answer["seconds"])),
            stopped=_STOPPED.validate_python(answer["stopped"]),
            made_in_seconds=float(answer["made_in_seconds"]),
        )
        for kind in (NoEstimate, UnusedGpu):
            if kind.__name__ in answer:
                message, files, on_any_gpu, fails, busy = _NO_ESTIMATE.validate_python(
                    answer[kind.__name__]
                )
                return came(kind(message, files, on_any_gpu=on_any_gpu, fails=fails, busy=busy))
        return came(_TRACES.validate_python(answer["traces"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SlurmError(f"{place}: no answer that can be read ({type(error).__name__})") from error
