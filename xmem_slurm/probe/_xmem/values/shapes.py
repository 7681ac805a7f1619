"""Operators whose result has a shape that follows from values: exact where they are known, else the
most or the least.

The kernels take `real`, which goes on to the device's own kernel, then what the operator was called
with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from _xmem import doubts
from _xmem.values import lazy
from _xmem.values.table import computed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from _xmem.annotations import Dtype, Function, Tensor
    from _xmem.values.assumed import Assumed
    from _xmem.values.table import Values

MOST_SORTED = 1 << 20
"""Entries of a sparse tensor whose places are compared: half a second's work on the host."""


class Shapes:
    """Kernels over the table `values`; `assumes_most`: of unknown masks, everything is selected,
    else nothing.

    `assumed` is told where a shape follows from what is made up.
    """

    def __init__(
        self, torch: ModuleType, values: Values, assumes_most: bool, assumed: Assumed
    ) -> None:
        self._torch, self._values, self._assumes_most = torch, values, assumes_most
        self._assumed = assumed

    def _on_host(self, args: Sequence[Any]) -> list[Any] | None:
        """Return known arguments on the host; None also of what was made up to say that nothing is
        equal.

        A text goes on by that; a mask of it selects what is not known.
        """
        mark = self._values.mark(args)
        return None if mark is not None and mark.equals else self._values.on_host(args)

    def _shape(
        self, real: Function, args: tuple[Any, ...], host: Function, upper: Callable[[], Any]
    ) -> Any:
        """Return what `host` gives of known arguments, on the device; else `upper()`, or what zeros
        lead to.
        """
        first = args[0]
        if not self._values.applies(first):
            return real(*args)
        host_args = self._on_host(args)
        result = None if host_args is None else computed(host, *host_args)
        if result is not None:
            device, mark = first.device, self._values.mark(args)
            self._assumed.shaped(mark)
            if isinstance(result, tuple):
                return tuple(self._values.on_device(part, device, mark) for part in result)
            return self._values.on_device(result, device, mark)
        doubts.note("value-shape", "shapes follow from values")
        return upper() if self._assumes_most else real(*args)

    def nonzero(self, real: Function, tensor: Tensor) -> Tensor:
        def upper() -> Tensor:
            return tensor.new_zeros((tensor.numel(), tensor.dim()), dtype=self._torch.long)

        large = not self._values.small(tensor) and self._values.has(tensor)
        view = self._values.lazy(tensor) if large else None
        if (
            view is not None
            and type(view.lazy) is lazy.Scattered
            and lazy.is_whole(view, tensor.shape)
        ):
            places, mark = view.lazy.nonzero(), self._values.mark((tensor,))
            if places is not None:
                self._assumed.shaped(mark)
                rows = self._torch.stack(self._torch.unravel_index(places, tensor.shape), 1)
                return self._values.on_device(rows, tensor.device, mark)
        return self._shape(real, (tensor,), self._torch.nonzero, upper)

    def masked_select(self, real: Function, tensor: Tensor, mask: Tensor) -> Tensor:
        def upper() -> Tensor:
            return self._torch.broadcast_tensors(tensor, mask)[0].reshape(-1).clone()

        if not tensor.is_cuda:
            return real(tensor, mask)
        host_args = self._on_host((mask,))
        if host_args is not None:
            self._assumed.shaped(self._values.mark((mask,)))
            return tensor.new_empty(
                int(
                    host_args[0]
                    .expand(self._torch.broadcast_shapes(tensor.shape, mask.shape))
                    .sum()
                )
            )
        return self._shape(real, (tensor, mask), self._torch.masked_select, upper)

    def unique2(
        self, real: Function, tensor: Tensor, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._unique(real, "_unique2", (tensor, *options), (-1,), tensor.shape)

    def unique_consecutive(
        self, real: Function, tensor: Tensor, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._unique(
            real, "unique_consecutive", (tensor, *options), tensor.shape, tensor.shape
        )

    def unique_dim(
        self, real: Function, tensor: Tensor, dim: int, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._unique(
            real, "unique_dim", (tensor, dim, *options), tensor.shape, (tensor.shape[dim],)
        )

    def _unique(
        self,
        real: Function,
        name: str,
        args: tuple[Any, ...],
        shape: Sequence[int],
        places: Sequence[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What is not known is all different; `shape` is that of it, `places` that of where each is
        found.
        """

        def upper() -> tuple[Tensor, Tensor, Tensor]:
            tensor, long = args[0], self._torch.long
            counts = tensor.new_ones(math.prod(places), dtype=long)
            return tensor.reshape(shape).clone(), tensor.new_zeros(places, dtype=long), counts

        return self._shape(real, args, getattr(self._torch.ops.aten, name).default, upper)

    def coalesce(self, real: Function, tensor: Tensor) -> Tensor:
        """Entries at the same place become one; where places are not known, no more are left than
        there are.

        That is no doubt: of few places most are met, and of many most entries have one for
        themselves.
        """
        count = tensor._nnz()
        if not self._values.applies(tensor) or count < 2 or tensor.is_coalesced():
            return real(tensor)
        places = tensor._indices()
        host_values = self._values.values_of(places) if count <= MOST_SORTED else None
        distinct = None if host_values is None else computed(self._torch.unique, host_values, dim=1)
        if distinct is not None:
            self._assumed.shaped(self._values.mark((places,)))
            entries = distinct.shape[1]
        elif self._assumes_most:
            entries = min(count, math.prod(tensor.shape[: tensor.sparse_dim()]))
        else:
            entries = 0
        if not entries:
            return real(tensor)
        # The places as one number each, their order, and where each begins; a radix sort has
        # another copy of two (aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu,
        # _coalesce_sparse_cuda, 2.11; thrust).
        flat, *copies = (places.new_empty((count,)) for _ in range(3))
        places.new_empty((2 * count,))
        values = tensor._values().new_empty((entries, *tensor._values().shape[1:]))
        places = (
            flat[None, :entries] if len(places) == 1 else places.new_empty((len(places), entries))
        )
        del copies
        return self._torch.sparse_coo_tensor(
            places, values, tensor.shape, check_invariants=False, is_coalesced=True
        )

    def bincount(
        self, real: Function, tensor: Tensor, weights: Tensor | None = None, minlength: int = 0
    ) -> Tensor:
        """What is not known is below `minlength`, where a script names that: it has no more
        classes.
        """
        host_values, host_weights = self._values.values_of(tensor), self._values.on_host((weights,))
        weighed = host_weights[0] if host_weights else None
        counted = None
        if host_values is not None:
            counted = computed(self._torch.bincount, host_values, weighed, minlength)
        if host_values is None and minlength:
            return tensor.new_empty((minlength,), dtype=self._counts(weights))
        if host_values is None or counted is None or not host_values.numel():
            return real(tensor, weights, minlength)
        mark = self._values.mark((tensor, weights))
        if len(counted) > minlength:
            self._assumed.shaped(mark)
        if host_weights:
            return self._values.on_device(counted, tensor.device, mark)
        return tensor.new_empty(counted.shape, dtype=self._counts(weights))

    def _counts(self, weights: Tensor | None) -> Dtype:
        """Return the type of counts (aten/src/ATen/native/cuda/SummaryOps.cu, `_bincount_cuda`)."""
        if weights is None:
            return self._torch.long
        return self._torch.float if weights.dtype is self._torch.float else self._torch.double

    def repeat_interleave(
        self, real: Function, repeats: Tensor, *, output_size: int | None = None
    ) -> Tensor:
        if not repeats.is_cuda:
            return real(repeats, output_size=output_size)
        host_values = self._values.values_of(repeats)
        result = (
            None if host_values is None else computed(self._torch.repeat_interleave, host_values)
        )
        if result is not None:
            mark = self._values.mark((repeats,))
            self._assumed.shaped(mark)
            return self._values.on_device(result, repeats.device, mark)
        doubts.note("value-shape", "shapes follow from values")
        return repeats.new_zeros(
            repeats.numel() if output_size is None else output_size, dtype=self._torch.long
        )

    def index(self, real: Function, tensor: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
        if not tensor.is_cuda:
            return real(tensor, indices)
        out = real(tensor, self._without_masks(indices))
        if self._values.small(out):
            host_args = self._values.on_host(
                (tensor, [index for index in indices if index is not None])
            )
            if host_args is not None:
                host_indices = iter(host_args[1])
                places = tuple(
                    slice(None) if index is None else next(host_indices) for index in indices
                )
                values = computed(host_args[0].__getitem__, places)
                if values is not None:
                    self._values.note(out, values, self._values.mark((tensor, indices)))
        return out

    def index_put_(
        self,
        real: Function,
        tensor: Tensor,
        indices: Sequence[Tensor | None],
        values: Tensor,
        *options: Any,
    ) -> Tensor:
        if tensor.is_cuda:
            indices = self._without_masks(indices, self._selected(tensor, indices, values))
        kept = self._values.of(tensor) if tensor.is_cuda and self._values.small(tensor) else None
        host_args = None if kept is None else self._values.on_host((indices, values))
        mark = None if host_args is None else self._values.mark((tensor, indices, values))
        real(tensor, indices, values, *options)
        self._torch.autograd.graph.increment_version(tensor)
        if (
            host_args is not None
            and computed(self._torch.ops.aten._index_put_impl_, kept, *host_args, *options)
            is not None
        ):
            self._values.wrote(tensor, mark)
        else:
            self._values.forget(tensor)
        return tensor

    def _selected(
        self, tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor
    ) -> int | None:
        """Return how many a mask among these indices must select for `values` to fit there, or
        None.

        What is selected is one dimension, where the indices stand or, where others are between
        them, the first (numpy's rule for indices that are arrays).
        """
        places = [place for place, index in enumerate(indices) if index is not None]
        present: list[Tensor] = [indices[place] for place in places]
        masks = [index.dim() for index in present if self._is_mask(index)]
        if not masks or any(index.dim() > 1 for index in present if not self._is_mask(index)):
            return None
        after = tensor.dim() - sum(masks) - (len(present) - len(masks))
        if places[-1] - places[0] == len(places) - 1:
            after -= places[0]
        axis = values.dim() - 1 - after
        return values.shape[axis] if axis >= 0 else None

    def _is_mask(self, index: Tensor) -> bool:
        return index.dtype in (self._torch.bool, self._torch.uint8)

    def _without_masks(
        self, indices: Sequence[Tensor | None], selected: int | None = None
    ) -> list[Tensor | None]:
        """Return indices with numbers in place of masks; of an unknown one, `selected` many, where
        that is given.
        """
        plain_indices = []
        for index in indices:
            if index is not None and self._is_mask(index) and index.is_cuda:
                # not by dispatch: we are below our key
                places = self.nonzero(self._torch.nonzero, index)
                if self._on_host((index,)) is None and selected not in (None, 1):
                    places = places.new_zeros((selected, index.dim()))
                plain_indices += places.unbind(1)
            else:
                plain_indices.append(index)
        return plain_indices
