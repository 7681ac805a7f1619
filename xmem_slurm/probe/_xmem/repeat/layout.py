"""How tensors lie in storages: it is noted of those that a call gave, and the like of them are made
from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from types import ModuleType

    from _xmem.annotations import Storage, Tensor
    from _xmem.repeat.events import LeftBlock


class View(NamedTuple):
    """How a tensor lies in a storage, `storage` by its number; of a plain value `storage` is
    None.
    """

    storage: Any
    shape: Any
    stride: Any = None
    offset: int = 0
    dtype: Any = None
    device: Any = None

    @property
    def value(self) -> Any:
        """The plain value."""
        return self.shape


class StorageLayout:
    """A list of tensors and plain values: a `View` of each, and the bytes of each storage, by their
    numbers.

    Those at the places `apart` count as if each had a storage for itself, which lies nowhere.
    """

    views: list[View]
    sizes: list[int]

    def __init__(self, leaves: Iterable[Any], apart: Container[int] = ()) -> None:
        self.views = []
        self.sizes = []
        numbers: dict[int, int] = {}
        for place, leaf in enumerate(leaves):
            if not hasattr(leaf, "untyped_storage"):
                self.views.append(View(None, leaf))
                continue
            own = place in apart
            number = numbers.setdefault(-1 - place if own else pointer(leaf), len(numbers))
            if number == len(self.sizes):
                self.sizes.append(reach(leaf) if own else leaf.untyped_storage().nbytes())
            lies = number, leaf.shape, leaf.stride(), 0 if own else leaf.storage_offset()
            self.views.append(View(*lies, leaf.dtype, leaf.device))
        self.pointers = tuple(numbers)
        """Where the storages lie; below 0: nowhere."""
        used = [view.storage for view in self.views]
        self.whole = [
            view.storage is not None and used.count(view.storage) == 1 and self._fills(view)
            for view in self.views
        ]
        """Which of them have a storage for themselves, and fill it."""

    def _fills(self, view: View) -> bool:
        """Whether a tensor of this shape and these strides has a storage of just this size."""
        return (
            view.offset == 0
            and 0 not in view.shape
            and _reach(view.shape, view.stride) * view.dtype.itemsize == self.sizes[view.storage]
        )

    def same(self, layout: StorageLayout) -> bool:
        """Whether others lie the same way."""
        return (self.views, self.sizes) == (layout.views, layout.sizes)

    def block(self, place: int, blocks: Sequence[LeftBlock | None]) -> LeftBlock | None:
        """Return the block of the tensor at this place, of those that the storages have, if any."""
        number = self.views[place].storage
        return blocks[number] if blocks and number is not None else None

    def is_matrix(self, place: int) -> bool:
        """Whether a tensor is one: the gradient of such a weight mostly is a view, by a transpose
        that torch goes back through, and torch adds nothing to a view in place.
        """
        return len(self.views[place].shape) == 2

    def like(self, torch: ModuleType, place: int, storages: dict[int, Storage]) -> Any:
        """Return a tensor like the one at this place, or the plain value; `storages` has those that
        tensors share.
        """
        view = self.views[place]
        if view.storage is None:
            return view.value
        if self.whole[place]:
            return torch.empty_strided(
                view.shape, view.stride, dtype=view.dtype, device=view.device
            )
        if view.storage not in storages:
            size = self.sizes[view.storage]
            storages[view.storage] = torch.empty(
                size, dtype=torch.uint8, device=view.device
            ).untyped_storage()
        empty = torch.empty(0, dtype=view.dtype, device=view.device)
        return empty.set_(storages[view.storage], view.offset, view.shape, view.stride)


def reach(tensor: Tensor) -> int:
    """Return the bytes from the first element of a tensor to the end of the last in memory."""
    return 0 if 0 in tensor.shape else _reach(tensor.shape, tensor.stride()) * tensor.element_size()


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((length - 1) * step for length, step in zip(shape, stride))  # noqa: B905 - 3.9


def is_strided(tensor: Tensor) -> bool:
    """Whether a tensor lies in one storage, as sparse ones do not."""
    return str(tensor.layout) == "torch.strided"


def pointer(tensor: Tensor) -> int:
    """Return where the storage of a tensor lies.

    Without Python's object for that storage where it can be: it stays as long as the storage does,
    and torch adds a gradient to another in place only where nobody else has its storage
    (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp).
    """
    address = tensor.data_ptr()
    if not address:  # of a tensor with no elements, or with no memory of its own
        return tensor.untyped_storage().data_ptr()
    return address - tensor.storage_offset() * tensor.element_size()
