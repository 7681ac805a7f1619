"""Steps of torch's own optimizers that were met before are skipped: what they need for a moment is
known by then.

A step is of the kind of another where the same parameters have gradients, of as many entries, each
has as much state, and the groups' options are alike but for rates. Others' optimizers are not
skipped: they count in Python, and may decide by it.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from _xmem.repeat.events import Region, alike, events
from _xmem.repeat.known import TIMES
from _xmem.repeat.layout import StorageLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Function, Optimizer, ServedNote
    from _xmem.repeat.calls import Calls

_RATES = {
    "params",
    "lr",
    "initial_lr",
    "weight_decay",
    "momentum",
    "betas",
    "eps",
    "step",
    "max_lr",
    "min_lr",
}
"""What of a group changes no allocation where it changes as a number."""


class StepKind:
    """Steps of one kind; `gave` is the layout of what the script gets of one."""

    def __init__(self) -> None:
        self.times: int = 0
        self.events: Any = None
        self.gave: StorageLayout = StorageLayout([])


class RecordedStep:
    """One that was made for real."""

    def __init__(self, kind: StepKind, begin: int, differs: Callable[[], None]) -> None:
        self._kind, self.region, self._differs = kind, Region(begin), differs
        self.gave = StorageLayout([])

    def read(self, notes: list[ServedNote], first: int) -> bool:
        """Take what torch noted of it; `notes` begin at position `first`. Return whether that was
        all.
        """
        mine, kind = self.region.of(notes, first), self._kind
        if mine is not None:
            new_events, _ = events(mine, {}, self.gave.pointers, 0)
            same = (
                kind.events is not None
                and alike(kind.events, new_events)
                and not new_events.remaining
            )
            if kind.times >= TIMES and not same:
                self._differs()
            kind.times, kind.events, kind.gave = (
                kind.times + 1 if same else 1,
                new_events,
                self.gave,
            )
        return True


class OptimizerSteps:
    """The steps of one process; `calls` are the skipped calls of modules there (`repeat/calls`)."""

    def __init__(self, torch: ModuleType, calls: Calls) -> None:
        self._torch, self._calls = torch, calls
        self._kinds_by_optimizer: weakref.WeakKeyDictionary[Optimizer, dict[Any, StepKind]] = (
            weakref.WeakKeyDictionary()
        )

    def hooked(self, hook: Function, _optimizer_class: type) -> Any:
        """Around what torch puts around a `step` for its hooks, which are called for skipped ones,
        too.
        """

        def hooked(step: Function) -> Function:
            module = getattr(step, "__module__", "")
            if not module.startswith("torch.optim.") or module.endswith(".lbfgs"):
                return hook(step)

            @functools.wraps(step)
            def stepped(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
                return self._step(step, optimizer, closure)

            return hook(stepped)

        return staticmethod(hooked)

    def _step(self, step: Function, optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
        """Skip a step, or make it and have it read."""
        calls, torch = self._calls, self._torch
        first = next(
            (parameter for group in optimizer.param_groups for parameter in group["params"]), None
        )
        if not calls.skips or first is None or not calls.is_here(first):
            return step(optimizer, closure) if closure is not None else step(optimizer)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        kind = self._kinds_by_optimizer.setdefault(optimizer, {}).setdefault(
            _kind(optimizer), StepKind()
        )
        skip_or_make(calls, kind, functools.partial(step, optimizer))
        return loss


def skip_or_make(calls: Calls, kind: StepKind, make: Callable[[], Any]) -> Any:
    """Skip a step of a kind that is known, or make it and have it read; return what it gives,
    nothing or a tensor.
    """
    if kind.times >= TIMES and not calls.compares:
        return calls.gives(kind.gave, kind.events)
    recorded = RecordedStep(kind, calls.position(), calls.step_differs)
    try:
        out = make()
    finally:
        recorded.region.end = calls.position()
    if out is None or calls.is_unknown(out):
        recorded.gave = StorageLayout([] if out is None else [out])
        calls.wanted(recorded)
    return out


def _kind(optimizer: Optimizer) -> tuple[Any, ...]:
    options, gradients = [], []
    for group in optimizer.param_groups:
        options += [(name, value) for name, value in group.items() if name not in _RATES]
        options += [
            (name, bool(group[name])) for name in ("weight_decay", "momentum") if name in group
        ]
        gradients_of_group = [parameter.grad for parameter in group["params"]]
        # of a sparse one (Embedding(sparse=True)) as many entries as a batch has tokens
        sizes = [
            None
            if gradient is None
            else gradient._nnz()
            if gradient.is_sparse
            else gradient.numel()
            for gradient in gradients_of_group
        ]
        gradients += [tuple(map(id, group["params"])), tuple(sizes)]
    # In the order in which they were made: to look each up would ask Python for a tensor's hash.
    states = [len(state) for state in optimizer.state.values() if isinstance(state, dict)]
    return str(options), tuple(gradients), len(optimizer.state), tuple(states)
