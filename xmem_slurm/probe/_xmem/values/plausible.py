"""What is made up for values that are not known, and what it is marked with (Note [Plausible
values]).

The kernels take `real`, which goes on to the device's own kernel, then what the operator was called
with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from _xmem.values.table import computed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from _xmem.annotations import Function, Tensor
    from _xmem.values.assumed import Assumed, AssumedMark
    from _xmem.values.metrics import Metrics
    from _xmem.values.table import Values

COUNTS = {"sum", "count_nonzero"}
"""What makes a figure of many values."""
COMPARED = {"lt", "le", "gt", "ge"}
"""What has the same answer for all that is finite, where it is with infinity: "the best so far"
begins so."""
HUGE = 1e9
"""What stands for infinity among scores (beam search in transformers/generation/utils.py, 5.17:
-1.0e9)."""
MADE_UP = {"isnan", "isinf", "isin", "all", "_is_all_true", "eq", "ne", *COMPARED}
"""What may have an answer of which nothing is known; `COUNTS` have, of truth values, and of numbers
made of those."""


class Plausible:
    """Makes up values for the table `values`; of unknown masks everything is selected if
    `assumes_most`, else nothing.
    """

    def __init__(
        self,
        torch: ModuleType,
        values: Values,
        assumes_most: bool,
        assumed: Assumed,
        metrics: Metrics,
    ) -> None:
        self._torch = torch
        self._values = values
        self._assumes_most = assumes_most
        self._assumed = assumed
        self._metrics = metrics

    def of(
        self, name: str, args: Sequence[Any], out: Tensor, mark: AssumedMark | None = None
    ) -> Any:
        """Return what every element of a result is that is not known, or None: see Note [Plausible
        values].

        `mark` is that of the arguments.
        """
        tensor, operand = args[0], args[1] if len(args) > 1 else None
        if name == "isin":
            return False  # tokens, of those that end a text: it goes on for as long as it may
        if name in ("isnan", "isinf", "all", "_is_all_true"):
            return name.endswith(("all", "true"))
        if name in COUNTS and self._assumes_most and out.numel():
            truths = tensor.dtype is self._torch.bool or (mark is not None and mark.truths)
            return self._counted(tensor.numel(), out.numel(), mark) if truths else None
        if name in ("eq", "ne"):
            itself = isinstance(operand, self._torch.Tensor) and _same(tensor, operand)
            if (itself and tensor.numel()) or (
                isinstance(operand, float) and not math.isfinite(operand)
            ):
                return (name == "eq") == bool(itself)
        if name in COMPARED and self._infinite(operand):
            return (name in ("lt", "le")) == (self._infinite(operand) > 0)
        return None

    def _counted(self, elements: int, results: int, mark: AssumedMark | None) -> int:
        """Return how many of so many truth values are true: all, or a score where predictions were
        compared.
        """
        line = self._assumed.line() if mark is not None and mark.equals and results == 1 else None
        return elements // results if line is None else self._metrics.count(elements, line)

    def _infinite(self, operand: Any) -> float:
        """Return what a tensor is compared with, if that is one number, infinite or as good as
        that; else 0.
        """
        if (
            isinstance(operand, self._torch.Tensor)
            and operand.is_floating_point()
            and self._values.small(operand)
        ):
            host_values = self._values.values_of(operand) if operand.is_cuda else operand
            one = None
            if host_values is not None and host_values.numel():
                one = host_values.reshape(-1)[0]
            operand = one.item() if one is not None and bool((host_values == one).all()) else None
        return operand if isinstance(operand, float) and abs(operand) >= HUGE else 0

    def mark(self, name: str) -> AssumedMark | None:
        """Return the mark of a plausible result of this operator, or None where all else would be
        no run to size.
        """
        if name == "all":
            words = "an all() of values that are not known, taken as true"
            return None if self._assumed.is_checked_by_torch() else self._assumed.mark(words)
        if name == "isin":
            return self._assumed.mark_of_unknown()._replace(equals=True)
        mark = None
        if name in COUNTS:
            mark = self._assumed.mark("a mask, of which everything is selected")
        return self.after(name, mark)

    def after(self, name: str, mark: AssumedMark | None) -> AssumedMark | None:
        """Return the mark of what an operator computes from values with `mark`."""
        if mark is None or name == "_is_all_true":  # torch checks an argument
            return None
        return mark._replace(decides=False) if name in COUNTS else mark

    def topk(
        self, real: Function, tensor: Tensor, k: int, dim: int = -1, *options: Any
    ) -> tuple[Tensor, Tensor]:
        """Of values that are not known the places are all different, and each is as frequent as
        any: even routing.
        """
        out = real(tensor, k, dim, *options)
        assumable = (
            self._values.applies(tensor)
            and tensor.dim()
            and tensor.shape[dim]
            and self._values.small(out[1])
        )
        if assumable and not self._noted(out, tensor, self._torch.topk, k, dim, *options):
            rows = self._torch.arange(out[1].numel() // max(1, k), device="cpu")[:, None]
            places = (rows - 1 - self._torch.arange(k, device="cpu")) % tensor.shape[dim]
            places = places.reshape(out[1].transpose(dim, -1).shape).transpose(dim, -1)
            self._values.note(
                out[1], places, self._assumed.mark("places by topk, assumed evenly used")
            )
        return out

    def sort(
        self, operator: Function, real: Function, tensor: Tensor, *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Values that are not known come out in the order in which they are: each place once."""
        out = real(tensor, *args, **options)
        assumable = self._values.applies(tensor) and tensor.dim() and self._values.small(out[1])
        if assumable and not self._noted(out, tensor, operator, *args, **options):
            dim = options.get("dim", args[0] if args else -1)
            places = self._torch.arange(tensor.shape[dim], device="cpu").expand(
                tensor.transpose(dim, -1).shape
            )
            mark = self._assumed.mark("an order by sort, assumed to be as it was")
            self._values.note(out[1], places.transpose(dim, -1), mark)
        return out

    def _noted(
        self,
        out: tuple[Tensor, Tensor],
        tensor: Tensor,
        operator: Function,
        *args: Any,
        **options: Any,
    ) -> bool:
        """Note what an operator gives of the values of a tensor; return whether they are known."""
        host_values = self._values.values_of(tensor)
        values = None if host_values is None else computed(operator, host_values, *args, **options)
        if values is not None:
            self._values.note_all(out, values, self._values.mark((tensor,)))
        return values is not None

    def multinomial(
        self,
        real: Function,
        weights: Tensor,
        count: int,
        replacement: bool = False,
        *,
        generator: Any = None,
    ) -> Tensor:
        """A draw of one reads whether the weights are valid
        (aten/src/ATen/native/Distributions.cpp).
        """
        if not weights.is_cuda:
            return real(weights, count, replacement, generator=generator)
        if replacement and count > 1:
            out = real(weights, count, replacement, generator=generator)
        else:
            drawn = self._torch.empty_like(weights).exponential_(1, generator=generator)
            self._torch.div(weights, drawn, out=drawn)
            if count > 1:
                return drawn.topk(count)[1]
            out = drawn.argmax(-1, keepdim=True)
        if self._values.keeps(out):
            self._values.note(out, None, self._assumed.mark("samples by multinomial, zeros here"))
        return out

    def normal(
        self, real: Function, mean: Any, deviation: Any = 1.0, *, generator: Any = None
    ) -> Tensor:
        """A tensor of deviations is read for negative ones
        (aten/src/ATen/native/DistributionTemplates.h).
        """
        device = next(
            parameter
            for parameter in (mean, deviation)
            if isinstance(parameter, self._torch.Tensor)
        )
        if not device.is_cuda:
            return real(mean, deviation, generator=generator)
        shapes = [
            parameter.shape
            for parameter in (mean, deviation)
            if isinstance(parameter, self._torch.Tensor)
        ]
        out = device.new_empty(self._torch.broadcast_shapes(*shapes)).normal_(generator=generator)
        return out.mul_(deviation).add_(mean)


def _same(one: Tensor, another: Tensor) -> bool:
    """Whether these are the same elements in the same places: two views of one tensor need not
    be.
    """
    same = another.is_cuda and one.data_ptr() == another.data_ptr() and one.dtype is another.dtype
    return same and one.shape == another.shape and one.stride() == another.stride()
