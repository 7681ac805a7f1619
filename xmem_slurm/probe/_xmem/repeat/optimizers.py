"""Steps of torch's own optimizers that were met before are skipped: what they need for a moment is
known by then.

A step is of the kind of another where the same parameters have gradients, of as many entries and
the same type, each has as much state, and the groups' options are alike but for rates. Others'
optimizers are not skipped: they count in Python, and may decide by it. Of torch's own some do:
RAdam rectifies from the sixth step on, ASGD averages from a step that the script chooses. A step
that is skipped counts all the same: scripts read of the state how many there were.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import weakref
from typing import TYPE_CHECKING, Any

from _xmem.repeat.events import Region, alike, events
from _xmem.repeat.known import TIMES
from _xmem.repeat.layout import StorageLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Dtype, Function, Optimizer, ServedNote
    from _xmem.repeat.calls import Calls
    from _xmem.repeat.events import Events

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


FIRST = 8
"""So many steps of an optimizer are made, whatever is known: what it does first it may not go on
with. RAdam without foreach rectifies from the sixth on, with its own betas, from the eighth with
0.75 (rho_t > 5, torch/optim/radam.py, 2.4 to 2.15)."""
_NOT_SKIPPED = ("torch.optim.lbfgs", "torch.optim.asgd")


class StepKind:
    """Steps of one kind; `gave` is the layout of what the script gets of one.

    Where a step adds up the entries of sparse gradients first, how many are left is another number
    in each: that is no other kind, and the most that was seen stands for all.
    """

    def __init__(self, *, adds_up_entries: bool = False) -> None:
        self.adds_up_entries, self.times = adds_up_entries, 0
        self.events: Events = None  # type: ignore[assignment] # until one was read
        self.gave = StorageLayout([])


class StepsOfOne:
    """What is known of the steps of one optimizer, and how many were `made`."""

    def __init__(self) -> None:
        self.kinds: dict[Any, StepKind] = {}
        self.made: int = 0


class RecordedStep:
    """One that was made for real; `differs` is told where it could have been skipped, and did
    something else.
    """

    def __init__(self, kind: StepKind, begin: int, differs: Callable[[], None] | None) -> None:
        self._kind, self.region, self._differs = kind, Region(begin), differs
        self.gave = StorageLayout([])

    def read(self, notes: list[ServedNote], first: int) -> bool:
        """Take what torch noted of it; `notes` begin at position `first`. Return whether that was
        all.
        """
        mine, kind = self.region.of(notes, first), self._kind
        if mine is not None:
            new_events, _ = events(mine, {}, self.gave.pointers, 0)
            before = kind.events
            is_alike = _alike_but_for_sizes if kind.adds_up_entries else alike
            same = before is not None and is_alike(before, new_events) and not new_events.remaining
            if same and kind.adds_up_entries:
                new_events = max(before, new_events, key=operator.attrgetter("peak"))
            if self._differs is not None and not same:
                self._differs()
            kind.times = kind.times + 1 if same else 1
            kind.events = new_events
            kind.gave = self.gave
        return True


class OptimizerSteps:
    """The steps of one process; `calls` are the skipped calls of modules there (`repeat/calls`)."""

    def __init__(self, torch: ModuleType, calls: Calls) -> None:
        self._torch, self._calls = torch, calls
        self._steps_by_optimizer: weakref.WeakKeyDictionary[Optimizer, StepsOfOne] = (
            weakref.WeakKeyDictionary()
        )

    def hooked(self, hook: Function, _optimizer_class: type) -> Any:
        """Around what torch puts around a `step` for its hooks, which are called for skipped ones,
        too.
        """

        def hooked(step: Function) -> Function:
            module = getattr(step, "__module__", "")
            if not module.startswith("torch.optim.") or module in _NOT_SKIPPED:
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
        captures = torch.cuda.is_current_stream_capturing()
        if not calls.skips or captures or first is None or not calls.is_here(first):
            return step(optimizer, closure) if closure is not None else step(optimizer)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        steps = self._steps_by_optimizer.setdefault(optimizer, StepsOfOne())
        name = calls.stream(), *_kind(optimizer)
        if name not in steps.kinds:
            steps.kinds[name] = StepKind(adds_up_entries=_adds_up_entries(optimizer))
        kind = steps.kinds[name]
        may_skip = steps.made >= FIRST
        if is_skipped(calls, kind) and may_skip:
            calls.gives(kind.gave, kind.events)
            _count(torch, optimizer)
        else:
            steps.made += 1
            record(calls, kind, functools.partial(step, optimizer), may_skip=may_skip)
        return loss


def is_skipped(calls: Calls, kind: StepKind) -> bool:
    """Whether a step of this kind need not be made."""
    return kind.times >= TIMES and not calls.compares


def record(calls: Calls, kind: StepKind, make: Callable[[], Any], *, may_skip: bool = True) -> Any:
    """Make a step and have it read; return what it gives, nothing or a tensor."""
    differs = calls.step_differs if kind.times >= TIMES and may_skip else None
    recorded = RecordedStep(kind, calls.position(), differs)
    try:
        out = make()
    finally:
        recorded.region.end = calls.position()
    if out is None or calls.is_unknown(out):
        recorded.gave = StorageLayout([] if out is None else [out])
        calls.wanted(recorded)
    return out


def _count(torch: ModuleType, optimizer: Optimizer) -> None:
    """Count a step that was skipped, as it would have: one for each parameter that has a
    gradient.
    """
    states = [
        state
        for parameter, state in optimizer.state.items()
        if isinstance(state, dict) and "step" in state and parameter.grad is not None
    ]
    on_gpu = []
    for state in states:
        count = state["step"]
        if type(count) is not torch.Tensor:  # SparseAdam's are plain numbers
            state["step"] += 1
        elif count.is_cuda:  # of a capturable or fused one
            on_gpu.append(count)
        elif count.dtype is torch.float32:  # torch's own counts: by torch it would take 5 us each
            ctypes.c_float.from_address(count.data_ptr()).value += 1
        else:
            count += 1
    if on_gpu:
        with torch.no_grad():
            torch._foreach_add_(on_gpu, 1)


def _alike_but_for_sizes(one: Events, another: Events) -> bool:
    in_order, others = (
        [(entry.action, entry.block) for entry in found.entries] for found in (one, another)
    )
    return in_order == others


def _adds_up_entries(optimizer: Optimizer) -> bool:
    gradients = [
        parameter.grad for group in optimizer.param_groups for parameter in group["params"]
    ]
    return any(
        gradient is not None and gradient.is_sparse and not gradient.is_coalesced()
        for gradient in gradients
    )


def _kind(optimizer: Optimizer) -> tuple[Any, ...]:
    options, gradients = [], []
    for group in optimizer.param_groups:
        options += [(name, value) for name, value in group.items() if name not in _RATES]
        options += [
            (name, bool(group[name])) for name in ("weight_decay", "momentum") if name in group
        ]
        sizes: list[tuple[Dtype, int] | None] = []
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                sizes.append(None)
            elif gradient.is_sparse:  # Embedding(sparse=True): as many as a batch has tokens
                sizes.append((gradient.dtype, gradient._nnz()))
            else:
                sizes.append((gradient.dtype, gradient.numel()))
        gradients += [tuple(map(id, group["params"])), tuple(sizes)]
    # In the order in which they were made: to look each up would ask Python for a tensor's hash.
    states = [len(state) for state in optimizer.state.values() if isinstance(state, dict)]
    return str(options), tuple(gradients), len(optimizer.state), tuple(states)
