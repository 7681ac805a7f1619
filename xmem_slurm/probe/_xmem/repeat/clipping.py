"""Gradients are not clipped by their norm again where others of the same shapes were.

What that needs for a moment is known by then. `error_if_nonfinite` has torch read what it computed;
tensors that are not plain are clipped in other ways; what is compiled is traced. Then nothing is
skipped.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from _xmem.repeat.optimizers import StepKind, is_skipped, record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Function, Tensor
    from _xmem.repeat.calls import Calls


class Clipping:
    """The clipping of one process; `calls` are the skipped calls of modules there
    (`repeat/calls`).
    """

    def __init__(self, torch: ModuleType, calls: Calls) -> None:
        self._torch, self._calls = torch, calls
        self._step_kinds: dict[Any, StepKind] = {}

    def measured(self, measure: Function, _module: ModuleType) -> Function:
        """Around what returns the norm of all gradients."""
        is_compiling = self._torch.compiler.is_compiling

        @functools.wraps(measure)
        def measured(tensors: Any, *how: Any, **named: Any) -> Any:
            if is_compiling():
                return measure(tensors, *how, **named)
            tensors = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors)
            make = functools.partial(measure, tensors, *how, **named)
            reads = named.get("error_if_nonfinite") or any(how[1:2])
            return make() if reads else self._step(make, tensors, ("measured", how, *named.items()))

        return measured

    def scaled(self, scale: Function, _module: ModuleType) -> Function:
        """Around what multiplies all gradients, by what is left of them of the norm that is
        allowed.
        """
        is_compiling = self._torch.compiler.is_compiling

        @functools.wraps(scale)
        def scaled(
            parameters: Any, max_norm: float, total_norm: Tensor, *how: Any, **named: Any
        ) -> Any:
            if is_compiling():
                return scale(parameters, max_norm, total_norm, *how, **named)
            parameters = (
                [parameters] if isinstance(parameters, self._torch.Tensor) else list(parameters)
            )
            tensors = [
                total_norm,
                *[parameter.grad for parameter in parameters if parameter.grad is not None],
            ]
            make = functools.partial(scale, parameters, max_norm, total_norm, *how, **named)
            return self._step(make, tensors, ("scaled", how, *named.items()))

        return scaled

    def _step(self, make: Callable[[], Any], tensors: list[Tensor], how: tuple[Any, ...]) -> Any:
        """Skip it, or make it and have it read."""
        calls, torch = self._calls, self._torch
        captures = torch.cuda.is_current_stream_capturing()
        if (
            not calls.skips
            or captures
            or not tensors
            or not all(type(tensor) is torch.Tensor and calls.is_here(tensor) for tensor in tensors)
        ):
            return make()
        kind = (
            calls.stream(),
            *how,
            tuple([(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]),
        )
        step_kind = self._step_kinds.setdefault(kind, StepKind())
        if is_skipped(calls, step_kind):
            return calls.gives(step_kind.gave, step_kind.events)
        return record(calls, step_kind, make)
