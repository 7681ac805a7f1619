"""The table of known values: one host storage for each device storage whose contents are known
(`values/known_values`).

In place of a host storage there may be how to make it (`values/lazy`), or nothing, where all that
is kept is the mark of what was assumed (`values/assumed`).
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem.values import lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import ModuleType

    from _xmem.annotations import Device, Dtype, Function, Storage, Tensor
    from _xmem.values.assumed import AssumedMark
    from _xmem.values.lazy import LazyView, Recipe

MOST_ELEMENTS = 1 << 18
"""Of a tensor of integers or booleans whose values are kept: a batch of labels, an adjacency
list..."""
MOST_FLOATS = 1 << 10
"""...and of floating point: scalars, schedules. Larger ones are what a GPU would compute with."""
LOADED = 1 << 12
"""Bytes of a storage whose contents are kept when it is loaded: an optimizer's count of its
steps."""
PURGE = 1 << 12
"""Of storages that are gone, so many at most are still in the table."""


class KnownStorage(NamedTuple):
    """What is known of a device storage."""

    storage: Any
    """A weak reference to it."""
    contents: Any
    """A host storage with what it holds, what makes that (`values/lazy`), or None."""
    version: int
    """That of the tensor that it was noted by."""
    mark: AssumedMark | None
    dtype: Dtype
    origins: tuple[set[int], frozenset[int]] | None
    """Those of Note [Where a value comes from], and what was being watched when it was noted."""


def computed(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Return what a function gives on the host, or None where it raises: then its result is not
    known.

    A launch raises nothing (a GPU divides integers by zero), and what a call must not be asked the
    device's own kernel has said before.
    """
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


class Values:
    """The table, by the address of a device storage.

    Only what is kept is asked for its storage: autograd does not add to a gradient in place once
    Python has had that in its hands (torch 2.11, can_accumulate_inplace), and the job would
    allocate more.
    """

    _kernels: list[set[int]]
    _origins: set[int] | None

    def __init__(self, torch: ModuleType) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._entries: dict[int, KnownStorage] = {}
        self._purge_at = PURGE
        self._storages = torch.UntypedStorage
        self._budget = lazy.LookQuota()
        self._of_thread = threading.local()
        self._kernels, self._origins = [], None
        self._marked = False  # most scripts make up nothing: then nobody looks for marks

    def applies(self, tensor: Tensor) -> bool:
        """Whether it is on the device, not nested, and of no subclass, trace or transform
        (torch.vmap).
        """
        if type(tensor) not in self._plain or not tensor.is_cuda or tensor.is_nested:
            return False
        native = self._torch._C
        return (
            native._len_torch_dispatch_stack() == 0
            and not native._functorch.is_functorch_wrapped_tensor(tensor)
        )

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor as one on the host, which shares them; None where they are
        not kept.
        """
        entry = self._entry(tensor)
        if entry is None or type(entry.contents) is not self._storages:
            return None
        host = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        return host.set_(entry.contents, tensor.storage_offset(), tensor.size(), tensor.stride())

    def values_of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor to look at, made if need be; None where they are not
        known.
        """
        entry = self._entry(tensor)
        if entry is None or entry.contents is None:
            return None
        if type(entry.contents) is self._storages:
            return self.of(tensor)
        if not self.small(tensor) and (
            self.is_gradient(tensor) or not self._budget.allows(tensor.numel())
        ):
            return None
        if tensor.dtype is not entry.dtype:
            return None
        size = tensor.size()
        return computed(
            entry.contents.part, self._budget, size, tensor.stride(), tensor.storage_offset()
        )

    def everywhere(self, tensor: Tensor) -> Tensor | None:
        """Return the one number that a large tensor has everywhere, as a host tensor; None where it
        is not known so.
        """
        entry = self._entry(tensor)
        if (
            entry is None
            or type(entry.contents) is not lazy.Full
            or tensor.dtype is not entry.dtype
        ):
            return None
        return entry.contents.one

    def is_gradient(self, tensor: Tensor) -> bool:
        """Whether it is computed with in a backward pass: what begins with ones is soon known, and
        decides nothing.
        """
        return tensor.is_floating_point() and self._torch._C._current_autograd_node() is not None

    def has(self, value: object) -> bool:
        """Whether something of the storage of this argument may be known."""
        return isinstance(value, self._torch.Tensor) and self._entry(value) is not None

    def may_know(self, args: Iterable[Any]) -> bool:
        """Whether there may be an entry for one of these; false only where there is none."""
        plain, entries = self._plain, self._entries
        if not entries:
            return False
        for arg in args:
            if type(arg) in plain:
                try:
                    if arg.is_cuda and address(arg) in entries:
                        return True
                except RuntimeError:  # it has no address
                    return True
            elif isinstance(arg, (list, tuple)) and self.may_know(arg):
                return True
        return False

    def mark(self, args: Iterable[Any]) -> AssumedMark | None:
        """Return the mark of what was assumed of these arguments: one that decides, where there is
        one; else None.
        """
        strongest = None
        if self._marked:
            for arg in args:
                if isinstance(arg, (list, tuple)):
                    mark = self.mark(arg)
                else:
                    entry = self._entry(arg) if isinstance(arg, self._torch.Tensor) else None
                    mark = None if entry is None else entry.mark
                if mark is not None and (strongest is None or mark.decides):
                    strongest = mark
        return strongest

    def _entry(self, tensor: Tensor) -> KnownStorage | None:
        """Return the entry of a tensor's storage, where it holds still; that it was looked up is
        noted.
        """
        if (
            not self._entries
            or not self.applies(tensor)
            or tensor.layout is not self._torch.strided
        ):
            return None
        key = address(tensor)
        entry = self._entries.get(key)
        if entry is None or entry.storage.expired() or tensor.is_inference():
            return None
        version = tensor._version
        if entry.version != version:
            if version > entry.version:
                self._entries.pop(key, None)
            return None
        if self._kernels:
            origins = entry.origins
            if origins is not None and origins[0] is self._origins:
                self._kernels[-1].update(origins[1])
            else:
                self._kernels[-1].add(key)
        return entry

    @contextlib.contextmanager
    def origins(self) -> Iterator[set[int]]:
        """Within this, fill the set that is given with the origins of what is read.

        Note [Where a value comes from]: a call may read what it has made itself (positions, a mask
        of them) and be the same each time, whatever it is given. So while one is watched, each
        value that is noted has its origins: the addresses of the storages, known before, that it
        was computed from.
        """
        outer, self._origins = self._origins, set()
        try:
            yield self._origins
        finally:
            self._origins = outer

    def within(self, kernel: Callable[[], Any], looks: Callable[[], int]) -> Any:
        """Run a kernel; `looks` says how often values were read."""
        if self._origins is None:
            return kernel()
        before = looks()
        self._kernels.append(set())
        try:
            return kernel()
        finally:
            addresses = self._kernels.pop()
            if looks() != before:
                self._origins |= addresses

    def fingerprint(self, tensor: Tensor) -> object | None:
        """Return what tells the values of a tensor from others; None where they are not known."""
        if self._entry(tensor) is None:
            return None
        values = self.values_of(tensor) if self.small(tensor) else None
        return object() if values is None else hash(tuple(values.flatten().tolist()))

    def small(self, tensor: Tensor) -> bool:
        """Whether values of such a tensor are kept."""
        limit = MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else MOST_ELEMENTS
        return tensor.numel() <= limit

    def keeps(self, tensor: Tensor) -> bool:
        """Whether values of this tensor are kept. Most are too large: that is seen first, as every
        operator asks.
        """
        return type(tensor) in self._plain and self.small(tensor) and self.applies(tensor)

    def note(self, tensor: Tensor, values: Tensor | None, mark: AssumedMark | None = None) -> None:
        """Keep `values`, of the same shape on the host, as those of `tensor`, which has its storage
        for itself.

        Of a large tensor a reference is kept. `mark` says that they were assumed; without values,
        only that is kept.
        """
        if not self.keeps(tensor):
            if values is not None:
                self.refer(tensor, values, mark)
            return
        storage = self._sole_storage(tensor)
        if storage is None:
            return
        host = None
        if values is not None:
            host = self._torch.UntypedStorage(storage.nbytes())
            kept = self._torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
                host, 0, tensor.size(), tensor.stride()
            )
            kept.copy_(values)
        self._put(tensor, storage, host, mark)

    def note_all(self, out: Any, values: Any, mark: AssumedMark | None) -> None:
        """The same of what an operator returns, which may be several tensors."""
        pairs = zip(out, values) if isinstance(out, tuple) else [(out, values)]  # noqa: B905 - since Python 3.10
        for tensor, host in pairs:
            self.note(tensor, host, mark)

    def refer(self, tensor: Tensor, values: Tensor, mark: AssumedMark | None = None) -> None:
        """Keep where the values of a large tensor are: in `values`, of the same shape on the
        host.
        """
        storage = None
        if self.applies(tensor) and not getattr(self._of_thread, "moves_bytes", False):
            storage = self._sole_storage(tensor)
        if storage is None or values.is_inference() or type(values) not in self._plain:
            return
        if values.stride() != tensor.stride() or values.layout is not self._torch.strided:
            return
        everywhere = None if tensor.is_floating_point() else lazy.everywhere(values)
        if everywhere is not None:
            self._put(tensor, storage, lazy.Full(self._torch, everywhere, tensor.dtype), mark)
            return
        source = lazy.HostSource(self._torch, values, tensor.dtype)
        host = values.untyped_storage()
        if not values.is_floating_point() and not host.is_shared():
            held = self._budget.holds(self._weak(storage), source, host.nbytes())
            source.held = values if held else None
        self._put(tensor, storage, source, mark)

    def make(self, tensor: Tensor, recipe: Recipe | None, mark: AssumedMark | None = None) -> None:
        """Keep what makes the values of a large tensor, as contiguous ones, or one everywhere; None
        keeps nothing.
        """
        has_order = type(recipe) is lazy.Full or tensor.is_contiguous()
        if recipe is not None and self.applies(tensor) and has_order:
            storage = self._sole_storage(tensor)
            if storage is not None:
                self._put(tensor, storage, recipe, mark)

    def copied(self, out: Tensor, tensor: Tensor) -> None:
        """`out` is a copy of `tensor`, which is on the device, too, or its cast."""
        if not self.has(tensor):
            return
        mark = self.mark((tensor,))
        if self.keeps(out):
            self.note(out, self.values_of(tensor), mark)
        elif out.is_cuda and tensor.dim():
            view, dtype = self.lazy(tensor), out.dtype
            if view is not None:
                recipe = lazy.elementwise(
                    self._torch, lambda part: part.to(dtype), out.shape, [view], {}
                )
                self.make(out, recipe, mark)

    def lazy(self, tensor: Tensor) -> LazyView | None:
        """Return what makes the values of a tensor with those around it, or None."""
        entry = self._entry(tensor)
        if entry is None or entry.contents is None:
            return None
        if type(entry.contents) is not self._storages:
            if tensor.dtype is not entry.dtype:
                return None
            return lazy.LazyView(
                entry.contents, tensor.size(), tensor.stride(), tensor.storage_offset()
            )
        elements = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        elements = elements.set_(
            entry.contents, 0, (entry.contents.nbytes() // tensor.element_size(),), (1,)
        ).clone()
        source = lazy.HostSource(self._torch, elements, elements.dtype)
        source.held = elements
        return lazy.LazyView(source, tensor.size(), tensor.stride(), tensor.storage_offset())

    def _sole_storage(self, tensor: Tensor) -> Storage | None:
        """Return the storage of a tensor that has it for itself, else None."""
        if tensor.layout is not self._torch.strided or not tensor.numel() or tensor.is_inference():
            return None
        storage = tensor.untyped_storage()
        return storage if storage.nbytes() <= tensor.numel() * tensor.element_size() else None

    @contextlib.contextmanager
    def of_bytes(self) -> Iterator[None]:
        """Within this, what this thread copies are the bytes of numbers: of large ones nothing is
        kept or looked at.

        A checkpoint that goes to the GPU is mapped, and larger than memory; its holes take room
        once they are read.
        """
        self._of_thread.moves_bytes = True
        try:
            yield
        finally:
            self._of_thread.moves_bytes = False

    def loaded(self, storage: Storage, host: Storage) -> None:
        """A storage was copied to the device: the tensor that torch.load makes over it by `set_`
        has these bytes.
        """
        if storage.nbytes() <= LOADED:
            self._entries[storage.data_ptr()] = KnownStorage(
                storage=self._weak(storage),
                contents=host.clone(),
                version=1,
                mark=None,
                dtype=self._torch.uint8,
                origins=self._origins_so_far(),
            )

    def _put(self, tensor: Tensor, storage: Storage, host: Any, mark: AssumedMark | None) -> None:
        self._marked = self._marked or mark is not None
        self._entries[address(tensor)] = KnownStorage(
            storage=self._weak(storage),
            contents=host,
            version=tensor._version,
            mark=mark,
            dtype=tensor.dtype,
            origins=self._origins_so_far(),
        )
        if len(self._entries) > self._purge_at:
            for key, entry in list(self._entries.items()):  # other threads note, too
                if entry.storage.expired():
                    self._entries.pop(key, None)
            self._purge_at = 2 * len(self._entries) + PURGE

    def wrote(self, tensor: Tensor, mark: AssumedMark | None = None) -> None:
        """The host values of `tensor` were changed as the device's were: they are those of its new
        version.
        """
        key = address(tensor)
        entry = self._entries.get(key)
        if entry is not None:
            if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
                mark = entry.mark if mark is None else mark
            self._marked = self._marked or mark is not None
            self._entries[key] = entry._replace(
                version=tensor._version, mark=mark, origins=self._origins_so_far()
            )

    def _origins_so_far(self) -> tuple[set[int], frozenset[int]] | None:
        """Return the origins of what is noted now, with what is being watched; None: nothing is."""
        if self._origins is None:
            return None
        return self._origins, frozenset(self._kernels[-1] if self._kernels else ())

    def forget(self, tensor: Tensor) -> None:
        """What `tensor` holds is not known any more: as `x.data`, it may have a version counter of
        its own.
        """
        if self.applies(tensor) and tensor.layout is self._torch.strided:
            self._entries.pop(address(tensor), None)

    def on_host(self, args: Sequence[Any]) -> list[Any] | None:
        """Return the arguments with host tensors for those on the device, or None where one is not
        known.
        """
        host_args = [self._one_on_host(arg) for arg in args]
        lost = any(host is None and arg is not None for host, arg in zip(host_args, args))  # noqa: B905
        return None if lost else host_args

    def _one_on_host(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(
            isinstance(part, self._torch.Tensor) for part in value
        ):
            return self.on_host(value)
        if not isinstance(value, self._torch.Tensor) or not value.is_cuda:
            return value
        return self.values_of(value)

    def on_device(self, values: Tensor, device: Device, mark: AssumedMark | None = None) -> Tensor:
        """Return `values`, a tensor on the host, as one on `device` whose values are known."""
        out = values.to(device)
        self.note(out, values, mark)
        return out


def address(tensor: Tensor) -> int:
    """Return where the storage of a tensor on the device begins."""
    offset = tensor.storage_offset()
    return tensor.data_ptr() - offset * tensor.element_size() if offset else tensor.data_ptr()
