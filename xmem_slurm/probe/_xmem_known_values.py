"""The table of known values: one host storage for each device storage whose contents are known (see `_xmem_known`)."""

MOST_ELEMENTS = 1 << 18
"""Of a tensor of integers or booleans whose values are kept: a batch of labels, an adjacency list..."""
MOST_FLOATS = 1 << 10
"""...and of floating point: scalars, schedules. Larger ones are what a GPU would compute with."""
PURGE = 1 << 12
"""Of storages that are gone, so many at most are still in the table."""


def computed(function, *args, **kwargs):
    """Return what a function gives on the host, or None where it raises: then its result is not known.

    A launch raises nothing (a GPU divides integers by zero), and what a call must not be asked the device's own kernel
    has said before.
    """
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


class Values:
    """The table: by the address of a device storage's object, (weak reference, host storage, version)."""

    def __init__(self, torch):
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._known = {}
        self._purge_at = PURGE

    def applies(self, tensor):
        """Whether it is on the device, not nested, and of no subclass, trace or transform (torch.vmap)."""
        if type(tensor) not in self._plain or not tensor.is_cuda or tensor.is_nested:
            return False
        native = self._torch._C
        return native._len_torch_dispatch_stack() == 0 and not native._functorch.is_functorch_wrapped_tensor(tensor)

    def of(self, tensor):
        """Return the values of a tensor as one on the host, which shares them; None where they are not known."""
        if not self.applies(tensor) or tensor.layout is not self._torch.strided:
            return None
        key = tensor.untyped_storage()._cdata
        found = self._known.get(key)
        if found is None or found[0].expired() or tensor.is_inference():
            return None
        version = tensor._version
        if found[2] != version:
            if version > found[2]:
                self._known.pop(key, None)
            return None
        host = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        return host.set_(found[1], tensor.storage_offset(), tensor.size(), tensor.stride())

    def small(self, tensor):
        """Whether values of such a tensor are kept."""
        most = MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else MOST_ELEMENTS
        return tensor.numel() <= most

    def keeps(self, tensor):
        """Whether values of this tensor are kept. Most are too large: that is seen first, as every operator asks."""
        return type(tensor) in self._plain and self.small(tensor) and self.applies(tensor)

    def note(self, tensor, values):
        """Keep `values`, of the same shape on the host, as those of `tensor`, which has its storage for itself."""
        if not self.keeps(tensor) or tensor.is_inference():
            return
        if tensor.layout is not self._torch.strided or not tensor.numel():
            return
        storage = tensor.untyped_storage()
        if storage.nbytes() > tensor.numel() * tensor.element_size():
            return
        host = self._torch.UntypedStorage(storage.nbytes())
        own = self._torch.empty(0, dtype=tensor.dtype, device="cpu").set_(host, 0, tensor.size(), tensor.stride())
        own.copy_(values)
        self._known[storage._cdata] = (self._weak(storage), host, tensor._version)
        if len(self._known) > self._purge_at:
            for key, each in list(self._known.items()):  # other threads note, too
                if each[0].expired():
                    self._known.pop(key, None)
            self._purge_at = 2 * len(self._known) + PURGE

    def wrote(self, tensor):
        """The host values of `tensor` were changed as the device's were: they are those of its new version."""
        key = tensor.untyped_storage()._cdata
        found = self._known.get(key)
        if found is not None:
            self._known[key] = (found[0], found[1], tensor._version)

    def forget(self, tensor):
        """What `tensor` holds is not known any more: as `x.data`, it may have a version counter of its own."""
        if self.keeps(tensor) and tensor.layout is self._torch.strided:
            self._known.pop(tensor.untyped_storage()._cdata, None)

    def on_host(self, args):
        """Return the arguments with host tensors for those on the device, or None where one is not known."""
        found = [self._one_on_host(each) for each in args]
        lost = any(host is None and each is not None for host, each in zip(found, args))  # noqa: B905
        return None if lost else found

    def _one_on_host(self, value):
        if isinstance(value, (list, tuple)) and any(isinstance(part, self._torch.Tensor) for part in value):
            return self.on_host(value)
        if not isinstance(value, self._torch.Tensor) or not value.is_cuda:
            return value
        return self.of(value) if self.small(value) else None

    def on_device(self, values, device):
        """Return `values`, a tensor on the host, as one on `device` whose values are known."""
        out = values.to(device)
        self.note(out, values)
        return out
