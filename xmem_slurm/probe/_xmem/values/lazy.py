"""Values of tensors that are too large to be kept: what they are made from, so that a part of them
can be had.

Note [Lazy values]: of a large tensor that came from the host or is made of numbers (ones, arange, a
triangle of such, a comparison of such), what is kept is how to make it. Slices, picks and
reductions whose result is small are computed from that, and are exact. Limits: what is looked at is
bounded, at once and in a process (`LookQuota`); beyond that the values are not known, as before. Of
a host tensor a reference is kept, no copy. Where the script lets go of it, it lives on within
`MOST_HELD` bytes in all, so that `torch.from_numpy(corpus).cuda()` stays known; larger ones,
batches that loaders share between processes, and floating point are known for as long as the script
itself keeps them. A host tensor that was written to since is not known any more: its version
counter says so, and what was written past torch (numpy) shows in a sample of its elements.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from _xmem.annotations import Dtype, Function, Size, Tensor

    Recipe = Union["Full", "HostSource", "Made"]
    """What makes values."""

MOST_HELD = 1 << 28
"""Bytes of host tensors that are held for their values: 256 MiB, a share of any job's memory that
nobody misses."""
AT_ONCE = 1 << 28
"""Elements of a host tensor that one operator may look at: a quarter of a second."""
IN_ALL = 1 << 28
"""...and all operators of a process: less than a second where they are made."""
MAKING = 16
"""Making an element takes as long as looking at so many."""
PIECE = 1 << 18
"""Elements that are made at a time, so that what is in between needs little memory."""
DEEPEST = 8
"""Operators between what is known and its sources: a chain that grows with every step is given
up."""
SAMPLE = 64
"""Elements that tell whether a host tensor is still the same."""


class LazyView(NamedTuple):
    """What makes the values of a tensor with those around it, and where in that they are."""

    lazy: Recipe
    size: Size
    stride: Sequence[int]
    offset: int


class _HeldSource(NamedTuple):
    """A host tensor that is held, of so many bytes, while there is a device storage."""

    reference: Any
    source: HostSource
    size: int


class LookQuota:
    """What may still be looked at, and held."""

    def __init__(self) -> None:
        self._remaining = IN_ALL
        self._held: list[_HeldSource] = []

    def allows(self, elements: int) -> bool:
        """Whether so many elements may be looked at, which then counts as done."""
        if elements > min(AT_ONCE, self._remaining):
            return False
        self._remaining -= elements
        return True

    def holds(self, reference: Any, source: HostSource, size: int) -> bool:
        """Whether a host tensor may be held for as long as there is the device storage of this weak
        reference.
        """
        for held_source in [
            held_source for held_source in self._held if held_source.reference.expired()
        ]:
            held_source.source.held = None
            self._held.remove(held_source)
        if sum(held_source.size for held_source in self._held) + size > MOST_HELD:
            return False
        self._held.append(_HeldSource(reference, source, size))
        return True


class Full:
    """One number everywhere."""

    depth = 0

    def __init__(self, torch: ModuleType, value: complex, dtype: Dtype) -> None:
        self.one = torch.full((), value, dtype=dtype, device="cpu")

    def part(
        self, _budget: LookQuota, size: Size, _stride: Sequence[int], _offset: int
    ) -> Tensor | None:
        """Return the elements of a view, as a host tensor; None where they cannot be had."""
        return self.one.expand(size)

    def at(self, places: Tensor) -> Tensor | None:
        """Return the elements at these places of the storage; None where they cannot be had."""
        return self.one.expand(places.shape)


class HostSource:
    """A host tensor that was copied to the device; elements have the same order there."""

    depth = 0

    def __init__(self, torch: ModuleType, tensor: Tensor, dtype: Dtype) -> None:
        self._torch = torch
        self._dtype = dtype
        self._offset = tensor.storage_offset()
        self._elements = tensor.numel()
        self._tensor, self.held = weakref.ref(tensor), None
        self._version, self._sample = tensor._version, self._look(tensor)

    def part(
        self, _budget: LookQuota, size: Size, stride: Sequence[int], offset: int
    ) -> Tensor | None:
        """As `Full.part`."""
        view = self._view(size, stride, offset)
        return None if view is None else view.to(self._dtype)

    def at(self, places: Tensor) -> Tensor | None:
        """As `Full.at`."""
        flat = self._view((self._elements,), (1,), 0)
        return None if flat is None else flat[places].to(self._dtype)

    def _view(self, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor | None:
        """Return a view of the host tensor; None where that is gone, or was written to."""
        tensor = self._tensor()
        if tensor is None or tensor._version != self._version:
            return None
        if not self._torch.equal(self._look(tensor), self._sample):
            return None
        view = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        return view.set_(tensor.untyped_storage(), self._offset + offset, size, stride)

    def _look(self, tensor: Tensor) -> Tensor:
        flat = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        step = max(1, tensor.numel() // SAMPLE)
        size = (tensor.numel() + step - 1) // step
        flat.set_(tensor.untyped_storage(), tensor.storage_offset(), (size,), (step,))
        return flat.clone().view(self._torch.uint8)


class Made:
    """Elements that `at` makes from their places in the storage."""

    def __init__(
        self, torch: ModuleType, at: Callable[[Tensor], Tensor | None], depth: int = 0
    ) -> None:
        self._torch, self.at, self.depth = torch, at, depth

    def part(
        self, budget: LookQuota, size: Size, stride: Sequence[int], offset: int
    ) -> Tensor | None:
        """As `Full.part`."""
        elements = size.numel()
        if not budget.allows(MAKING * elements):
            return None
        places = self._torch.full((), offset, device="cpu")
        for length, step in zip(size, stride):  # noqa: B905 - since Python 3.10
            places = places[..., None] + self._torch.arange(length, device="cpu") * step
        pieces = [self.at(piece_places) for piece_places in places.reshape(-1).split(PIECE)]
        if any(piece is None for piece in pieces):
            return None
        return self._torch.cat(pieces).reshape(size)


class Scattered(Made):
    """One number everywhere, `full`, but at `places` of the storage, which are sorted and each
    there once: `values`.
    """

    def __init__(self, torch: ModuleType, full: Full, places: Tensor, values: Tensor) -> None:
        super().__init__(torch, self._at, 1)
        self.full, self.places, self.values = full, places, values

    def _at(self, places: Tensor) -> Tensor:
        index = self._torch.searchsorted(self.places, places).clamp_(max=len(self.places) - 1)
        return self._torch.where(
            self.places[index] == places, self.values[index], self.full.at(places)
        )

    def mapped(
        self, operator: Function, args: Sequence[Any], which: int, kwargs: dict[str, Any]
    ) -> Scattered:
        """Return what an operator makes of each element, which stands for `args[which]`."""
        one, values = (
            operator(*args[:which], elements, *args[which + 1 :], **kwargs)
            for elements in (self.full.one.expand(1), self.values)
        )
        return Scattered(self._torch, Full(self._torch, one.item(), one.dtype), self.places, values)

    def nonzero(self) -> Tensor | None:
        """Return where it is not zero, in order; None where that is all but everywhere."""
        return None if self.full.one.item() else self.places[self.values != 0]


def scattered(torch: ModuleType, full: Full, shape: Size, written: Sequence[Any]) -> Scattered:
    """Return the values of a contiguous tensor of this shape, one number so far, after
    `scatter_`.
    """
    dim, index, source = written
    places = index * _steps(shape)[dim]
    for axis, step in enumerate(_steps(shape)):
        if axis != dim % len(shape):
            along = torch.arange(index.shape[axis], device="cpu") * step
            places = places + along.reshape(
                [-1 if dimension == axis else 1 for dimension in range(len(shape))]
            )
    if isinstance(source, torch.Tensor):
        values = (
            source[tuple(slice(length) for length in index.shape)].reshape(-1).to(full.one.dtype)
        )
    else:
        values = torch.full((index.numel(),), source, dtype=full.one.dtype, device="cpu")
    places, order = places.reshape(-1).sort(stable=True)
    last = torch.ones_like(places, dtype=torch.bool)
    last[:-1] = places[1:] != places[:-1]
    return Scattered(torch, full, places[last], values[order][last])


def everywhere(values: Tensor) -> Any:
    """Return the number that a host tensor is everywhere; None where there are several, or too many
    to look at.
    """
    if values.numel() > AT_ONCE or not values.is_contiguous():
        return None
    flat = values.detach().view(-1)
    for part in (flat[:: max(1, flat.numel() // SAMPLE)], flat):
        if not bool((part == flat[0]).all()):
            return None
    return flat[0].item()


def is_whole(view: LazyView, shape: Size) -> bool:
    """Whether this is all of a contiguous tensor of this shape."""
    return view.size == shape and list(view.stride) == _steps(shape) and not view.offset


def _steps(shape: Size) -> list[int]:
    """Return the strides of a contiguous tensor of this shape."""
    steps = [1]
    for length in reversed(shape[1:]):
        steps.insert(0, steps[0] * length)
    return steps


def arange(torch: ModuleType, start: Any, step: Any, dtype: Dtype) -> Made:
    """Return the values of torch.arange."""
    wide = torch.int64 if isinstance(start, int) and isinstance(step, int) else torch.float64
    return Made(torch, lambda places: (places.to(wide) * step + start).to(dtype))


def eye(torch: ModuleType, columns: int, dtype: Dtype) -> Made:
    """Return the values of torch.eye with so many columns."""
    return Made(torch, lambda places: (places // columns == places % columns).to(dtype))


def triangle(
    torch: ModuleType, lazy: Recipe, shape: Size, diagonal: int, upper: bool
) -> Made | None:
    """Return the values of torch.triu or torch.tril of a contiguous tensor of this shape; None if
    it is too deep.
    """
    rows, columns = shape[-2:]

    def at(places: Tensor) -> Tensor | None:
        values = lazy.at(places)
        if values is None:
            return None
        above = places % columns - places // columns % rows - diagonal
        return torch.where(above >= 0 if upper else above <= 0, values, torch.zeros_like(values))

    return Made(torch, at, lazy.depth + 1) if lazy.depth < DEEPEST else None


def elementwise(
    torch: ModuleType, operator: Function, shape: Size, args: Sequence[Any], kwargs: dict[str, Any]
) -> Recipe | None:
    """Return the values of an operator on elements, for a contiguous result of this shape; None if
    it is too deep.

    Of `args`, a tensor is given as a `LazyView`, numbers as themselves.
    """
    which = [place for place, argument in enumerate(args) if isinstance(argument, LazyView)]
    if (
        len(which) == 1
        and type(args[which[0]].lazy) is Scattered
        and is_whole(args[which[0]], shape)
    ):
        return args[which[0]].lazy.mapped(operator, args, which[0], kwargs)
    if all(type(args[place].lazy) is Full for place in which):
        numbers = (
            argument.lazy.one if isinstance(argument, LazyView) else argument  # type: ignore[union-attr]
            for argument in args
        )
        one = operator(*numbers, **kwargs)
        return Full(torch, one.item(), one.dtype)
    depth = 1 + max(args[place].lazy.depth for place in which)
    strides = [
        _strides(argument, shape) if isinstance(argument, LazyView) else None for argument in args
    ]

    def at(places: Tensor) -> Tensor | None:
        """Compute the elements from those of the arguments at the same places."""
        operands: list[Any] = []
        indices: list[Tensor] = []
        for length in reversed(shape):
            indices.insert(0, places % length)
            places = places // length
        for operand, steps in zip(args, strides):  # noqa: B905 - since Python 3.10
            if steps is not None:
                operand_places = torch.full_like(places, operand.offset)
                for index, step in zip(indices, steps):  # noqa: B905 - since Python 3.10
                    operand_places += index * step
                operand = operand.lazy.at(operand_places)  # noqa: PLW2901
                if operand is None:
                    return None
            operands.append(operand)
        return operator(*operands, **kwargs)

    return Made(torch, at, depth) if depth <= DEEPEST else None


def _strides(view: LazyView, shape: Size) -> list[int]:
    """Return by how much the place of a tensor's element moves for each dimension of what it is
    broadcast to.
    """
    _, size, stride, _ = view
    steps = [0 if length == 1 else step for length, step in zip(size, stride)]  # noqa: B905 - since Python 3.10
    return [0] * (len(shape) - len(size)) + steps
