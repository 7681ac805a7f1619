"""Values that are known although no kernel runs, so that what a script decides by them comes out as on a GPU.

Note [Known values]: device memory has no contents. A small tensor that was copied from the host, filled, or computed
from such, has all the same: they are kept here, one host storage for each device storage, and small operations on them
are computed on the host beside the launch that does nothing. They hold as long as the version counter of the tensor is
the one that they were noted at: whatever else writes to it in torch raises that. So lengths, masks, labels, splits and
graphs have their real values when a script reads them or takes a shape from them.

Note [Plausible values]: what is not known follows from how it was made. Everything is finite and no NaN; what an
argument check asks of `all` holds; of a mask, everything is selected, because less would be quietly too small: `least`
(XMEM_SHAPES) selects nothing, which is the other end of the bracket. The places that topk finds are all different, so
that experts are used evenly. Other numbers are zeros, as in the stand-ins' memory.

The kernels here stand at the dispatch key ADInplaceOrView: below autograd, above the device. Those that torch has there
only raise the version counter (torch/csrc/autograd/VariableTypeUtils.h, 2.4 to 2.15), which is done here, too.
"""

import functools
import importlib
import math
import warnings

MOST_ELEMENTS = 1 << 18
"""Of a tensor of integers or booleans whose values are kept: a batch of labels, an adjacency list..."""
MOST_FLOATS = 1 << 10
"""...and of floating point: scalars, schedules. Larger ones are what a GPU would compute with."""
PURGE = 1 << 12
"""Of storages that are gone, so many at most are still in the table."""

_COMPUTED = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar
    ge.Tensor logical_not logical_and logical_or bitwise_not bitwise_and.Tensor bitwise_or.Tensor isnan
    sum sum.dim_IntList max min amax amin all all.dim any any.dim count_nonzero count_nonzero.dim_IntList cumsum prod
    clone cat stack index_select gather repeat flip roll where.self sort argsort floor_divide remainder.Scalar
    remainder.Tensor _is_all_true _is_any_true
"""
"""Operators whose values are computed where those of all their tensors are known."""

_FACTORIES = "tensor as_tensor zeros ones full arange eye zeros_like ones_like full_like"
_METHODS = "new_zeros new_ones new_full new_tensor"
"""What makes tensors of values that are on the host. Their C++ is below our key already."""

_doubts = {}


def install(torch, environ):
    """Keep values from now on; where this torch lacks what that needs, nothing is known, as before."""
    _print_without_doubt(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel is replaced, which is what it warns of
        try:
            _Kernels(torch, environ.get("XMEM_SHAPES", "most") == "most").register()
        except (AttributeError, TypeError, RuntimeError):
            _doubt("values-unknown", "this torch does not let kernels be wrapped")


def doubts():
    """Return what was assumed of values, in the form of a trace's doubts."""
    return [{"code": code, "detail": detail, "count": count} for (code, detail), count in _doubts.items()]


def _print_without_doubt(torch):
    """What a tensor looks like in print hangs on its values, and nothing on what it looks like."""
    strings = importlib.import_module("torch._tensor_str")
    text = strings._str

    def _str(*args, **kwargs):
        kept = dict(_doubts)
        try:
            return text(*args, **kwargs)
        finally:
            _doubts.clear()
            _doubts.update(kept)

    strings._str = _str


def _doubt(code, detail):
    _doubts[code, detail] = _doubts.get((code, detail), 0) + 1


class _Values:
    """The table: by the address of a device storage's object, (weak reference, host storage, version)."""

    def __init__(self, torch):
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._known = {}
        self._purge_at = PURGE

    def applies(self, tensor):
        """Whether this is a tensor on the device, none of a subclass, a trace or a transform (torch.vmap)."""
        if type(tensor) not in self._plain or not tensor.is_cuda:
            return False
        native = self._torch._C
        return native._len_torch_dispatch_stack() == 0 and not native._functorch.is_functorch_wrapped_tensor(tensor)

    def of(self, tensor):
        """Return the values of a tensor as one on the host, which shares them; None where they are not known."""
        if not self.applies(tensor) or tensor.layout is not self._torch.strided:
            return None
        found = self._known.get(tensor.untyped_storage()._cdata)
        if found is None or found[0].expired() or tensor.is_inference() or found[2] != tensor._version:
            return None
        host = self._torch.empty(0, dtype=tensor.dtype)
        return host.set_(found[1], tensor.storage_offset(), tensor.size(), tensor.stride())

    def small(self, tensor):
        """Whether values of such a tensor are kept."""
        most = MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else MOST_ELEMENTS
        return tensor.numel() <= most

    def note(self, tensor, values):
        """Keep `values`, of the same shape on the host, as those of `tensor`, which has its storage for itself."""
        if not self.applies(tensor) or not self.small(tensor) or tensor.is_inference():
            return
        if tensor.layout is not self._torch.strided or not tensor.numel():
            return
        storage = tensor.untyped_storage()
        if storage.nbytes() > tensor.numel() * tensor.element_size():
            return
        host = self._torch.UntypedStorage(storage.nbytes())
        own = self._torch.empty(0, dtype=tensor.dtype).set_(host, 0, tensor.size(), tensor.stride())
        own.copy_(values)
        self._known[storage._cdata] = (self._weak(storage), host, tensor._version)
        if len(self._known) > self._purge_at:
            self._known = {key: each for key, each in self._known.items() if not each[0].expired()}
            self._purge_at = 2 * len(self._known) + PURGE

    def wrote(self, tensor):
        """The host values of `tensor` were changed as the device's were: they are those of its new version."""
        key = tensor.untyped_storage()._cdata
        reference, host, _ = self._known[key]
        self._known[key] = (reference, host, tensor._version)


class _Kernels:
    """Wraps operators of torch; `most`: of unknown masks, everything is selected."""

    def __init__(self, torch, most):
        self._torch, self._most = torch, most
        self._values = _Values(torch)
        self._below = torch._C._after_ADInplaceOrView_keyset
        self._library = torch.library.Library("aten", "IMPL")
        self._raise_version = torch.autograd.graph.increment_version

    def register(self):
        """Put every kernel in its place."""
        aten = self._torch.ops.aten
        for name in _COMPUTED.split():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(aten, packet), overload or "default", None)
            if operator is not None:
                self._wrap(operator, self._computed(operator, packet))
        for operator, kernel in (
            (aten._local_scalar_dense.default, self._local_scalar_dense),
            (aten._to_copy.default, self._to_copy),
            (aten.copy_.default, self._copy_),
            (aten.fill_.Scalar, self._fill_),
            (aten.fill_.Tensor, self._fill_with),
            (aten.zero_.default, self._zero_),
            (aten.nonzero.default, self._nonzero),
            (aten.masked_select.default, self._masked_select),
            (aten._unique2.default, self._unique2),
            (aten.unique_consecutive.default, self._unique_consecutive),
            (aten.unique_dim.default, self._unique_dim),
            (aten.bincount.default, self._bincount),
            (aten.repeat_interleave.Tensor, self._repeat_interleave),
            (aten.equal.default, self._equal),
            (aten.topk.default, self._topk),
            (aten.index.Tensor, self._index),
            (aten.index_put_.default, self._index_put_),
            (aten._index_put_impl_.default, self._index_put_),
            (aten.multinomial.default, self._multinomial),
            (aten.normal.Tensor_Tensor, self._normal),
            (aten.normal.Tensor_float, self._normal),
            (aten.normal.float_Tensor, self._normal),
        ):
            self._wrap(operator, kernel)
        for place, names in ((self._torch, _FACTORIES), (self._torch.Tensor, _METHODS)):
            for name in names.split():
                setattr(place, name, self._factory(getattr(place, name)))
        # TorchScript knows its functions by identity; where it has listed them already, ours are told to it.
        listed = self._torch.jit._builtins._builtin_table or {}
        for name in _FACTORIES.split():
            made = getattr(self._torch, name)
            if id(made.__wrapped__) in listed:
                listed[id(made)] = listed[id(made.__wrapped__)]

    def _factory(self, make):
        @functools.wraps(make)
        def made(*args, **kwargs):
            out = make(*args, **kwargs)
            if self._values.applies(out) and self._values.small(out) and not out.is_inference():
                kwargs.update(device="cpu", dtype=out.dtype)
                if "requires_grad" in kwargs:
                    kwargs["requires_grad"] = False
                kwargs.pop("layout", None)
                self._values.note(out, make(*args, **kwargs))
            return out

        return made

    def _wrap(self, operator, kernel):
        # An operator that nothing differentiates goes from autograd's fallback past our key: there it is caught before.
        past = "(none)" in _line(self._torch._C._dispatch_dump(operator.name()), "Autograd[alias]")
        redispatch, below = operator.redispatch, self._torch._C._after_autograd_keyset if past else self._below
        tensors = [
            index for index, each in enumerate(operator._schema.arguments) if str(each.type) in ("Tensor", "Tensor?")
        ]

        def called(keys, *args, **kwargs):
            def real(*args, **kwargs):
                return redispatch(keys & below, *args, **kwargs)

            # A number that C++ wrapped as a tensor comes here as a number, and cannot go back as one.
            if any(index < len(args) and isinstance(args[index], (bool, int, float, complex)) for index in tensors):
                args = self._with_tensors(args, tensors)
            return kernel(real, *args, **kwargs)

        self._library.impl(operator, called, "AutogradCUDA" if past else "ADInplaceOrView", with_keyset=True)

    def _with_tensors(self, args, tensors):
        torch, args = self._torch, list(args)
        like = next((each for each in args if isinstance(each, torch.Tensor)), None)
        for index in tensors:
            if index < len(args) and isinstance(args[index], (bool, int, float, complex)):
                kind = torch.result_type(like, args[index]) if like is not None else None
                args[index] = torch.scalar_tensor(args[index], dtype=kind)
        return args

    # -- operators that are computed -----------------------------------------------------------------------------------

    def _computed(self, operator, name):
        def kernel(real, *args, **kwargs):
            out = real(*args, **kwargs)
            first = out[0] if isinstance(out, tuple) else out
            if not self._values.applies(first) or not self._values.small(first):
                return out
            known = self._on_host(args)
            if known is not None and "device" not in kwargs:
                values = operator(*known, **kwargs)
                pairs = zip(out, values) if isinstance(out, tuple) else [(out, values)]  # noqa: B905 - since Python 3.10
                for each, value in pairs:
                    self._values.note(each, value)
            else:
                value = self._plausible(name, args)
                if value is not None:
                    self._values.note(out, self._torch.full(out.shape, value, dtype=out.dtype))
            return out

        return kernel

    def _on_host(self, args):
        """Return the arguments with host tensors for those on the device, or None where one is not known."""
        found = [self._one_on_host(each) for each in args]
        lost = any(host is None and each is not None for host, each in zip(found, args))  # noqa: B905
        return None if lost else found

    def _one_on_host(self, value):
        if isinstance(value, (list, tuple)) and any(isinstance(part, self._torch.Tensor) for part in value):
            return self._on_host(value)
        if not isinstance(value, self._torch.Tensor) or not value.is_cuda:
            return value
        return self._values.of(value) if self._values.small(value) else None

    def _plausible(self, name, args):
        """Return what every element of a result is that is not known, or None: see Note [Plausible values]."""
        tensor, other = args[0], args[1] if len(args) > 1 else None
        if name in ("isnan", "all", "_is_all_true"):
            return name != "isnan"
        if name in ("sum", "count_nonzero") and tensor.dtype is self._torch.bool and self._most and not other:
            return tensor.numel()
        if name in ("eq", "ne"):
            itself = isinstance(other, self._torch.Tensor) and other.is_cuda and tensor.data_ptr() == other.data_ptr()
            if (itself and tensor.numel()) or (isinstance(other, float) and not math.isfinite(other)):
                return (name == "eq") == bool(itself)
        return None

    # -- reading -------------------------------------------------------------------------------------------------------

    def _local_scalar_dense(self, real, tensor):
        known = self._values.of(tensor)
        return real(tensor) if known is None else known.item()

    def _to_copy(self, real, tensor, **kwargs):
        known = self._values.of(tensor) if tensor.is_cuda else tensor
        device = kwargs.get("device")
        leaves = tensor.is_cuda and device is not None and device.type == "cpu"
        if leaves and known is not None:
            return known.clone().to(kwargs.get("dtype") or tensor.dtype)
        out = real(tensor, **kwargs)
        if known is not None and self._values.applies(out) and self._values.small(out):
            self._values.note(out, known)
        return out

    def _equal(self, real, one, other):
        known = self._on_host((one, other))
        return real(one, other) if known is None else self._torch.equal(*known)

    def _topk(self, real, tensor, k, dim=-1, *options):
        """Of values that are not known the places are all different, and each is as frequent as any: even routing."""
        out = real(tensor, k, dim, *options)
        if self._values.applies(tensor) and tensor.dim() and tensor.shape[dim] and self._values.small(out[1]):
            known = self._on_host((tensor,))
            if known is not None:
                places = self._torch.topk(known[0], k, dim, *options)[1]
            else:
                rows = self._torch.arange(out[1].numel() // max(1, k))[:, None]
                places = (rows - 1 - self._torch.arange(k)) % tensor.shape[dim]
                places = places.reshape(out[1].transpose(dim, -1).shape).transpose(dim, -1)
            self._values.note(out[1], places)
        return out

    # -- writing -------------------------------------------------------------------------------------------------------

    def _written(self, target, write):
        """The device's tensor is written to whole by what `write` does to one on the host."""
        if not self._values.applies(target) or not self._values.small(target):
            self._raise_version(target)
            return target
        host = self._values.of(target)
        self._raise_version(target)
        if host is not None:
            write(host)
            self._values.wrote(target)
        elif not target.is_inference():
            host = self._torch.empty(target.shape, dtype=target.dtype)
            write(host)
            self._values.note(target, host)
        return target

    def _copy_(self, real, target, source, non_blocking=False):
        if source.is_cuda and not target.is_cuda:
            known = self._values.of(source)
            if known is not None:
                real(target, known, non_blocking)
                self._raise_version(target)
                return target
        real(target, source, non_blocking)
        if target.is_cuda and self._values.small(target):
            known = self._values.of(source) if source.is_cuda else source
            if known is not None and type(known) in (self._torch.Tensor, self._torch.nn.Parameter):
                return self._written(target, lambda host: host.copy_(known))
        self._raise_version(target)
        return target

    def _fill_(self, real, target, value):
        real(target, value)
        return self._written(target, lambda host: host.fill_(value))

    def _fill_with(self, real, target, value):
        known = self._on_host((value,))
        real(target, value)
        if known is None:
            self._raise_version(target)
            return target
        return self._written(target, lambda host: host.fill_(known[0]))

    def _zero_(self, real, target):
        real(target)
        return self._written(target, lambda host: host.zero_())

    # -- shapes that follow from values --------------------------------------------------------------------------------

    def _shape(self, real, args, host, upper):
        """Return what `host` gives of known arguments, on the device; else `upper()`, or what zeros lead to."""
        first = args[0]
        if not self._values.applies(first):
            return real(*args)
        known = self._on_host(args)
        if known is not None:
            found = host(*known)
            device = first.device
            if isinstance(found, tuple):
                return tuple(self._on_device(each, device) for each in found)
            return self._on_device(found, device)
        _doubt("value-shape", "shapes follow from values")
        return upper() if self._most else real(*args)

    def _on_device(self, values, device):
        out = values.to(device)
        self._values.note(out, values)
        return out

    def _nonzero(self, real, tensor):
        def upper():
            return tensor.new_zeros((tensor.numel(), tensor.dim()), dtype=self._torch.long)

        return self._shape(real, (tensor,), self._torch.nonzero, upper)

    def _masked_select(self, real, tensor, mask):
        def upper():
            return self._torch.broadcast_tensors(tensor, mask)[0].reshape(-1).clone()

        if not tensor.is_cuda:
            return real(tensor, mask)
        known = self._values.of(mask)
        if known is not None:
            return tensor.new_empty(int(known.expand(self._torch.broadcast_shapes(tensor.shape, mask.shape)).sum()))
        return self._shape(real, (tensor, mask), self._torch.masked_select, upper)

    def _unique2(self, real, tensor, *options):
        def upper():
            flat = tensor.reshape(-1)
            return (
                flat.clone(),
                self._torch.zeros_like(tensor, dtype=self._torch.long),
                self._ones(flat.numel(), tensor),
            )

        aten = self._torch.ops.aten
        return self._shape(real, (tensor, *options), aten._unique2.default, upper)

    def _unique_consecutive(self, real, tensor, *options):
        def upper():
            long = self._torch.zeros_like(tensor, dtype=self._torch.long)
            return tensor.clone(), long, self._ones(tensor.numel(), tensor)

        return self._shape(real, (tensor, *options), self._torch.ops.aten.unique_consecutive.default, upper)

    def _unique_dim(self, real, tensor, dim, *options):
        def upper():
            count = tensor.shape[dim]
            return tensor.clone(), self._ones(count, tensor) * 0, self._ones(count, tensor)

        return self._shape(real, (tensor, dim, *options), self._torch.ops.aten.unique_dim.default, upper)

    def _ones(self, count, like):
        return like.new_ones(count, dtype=self._torch.long)

    def _bincount(self, real, tensor, *options):
        known = self._values.of(tensor)
        if known is None or not known.numel():
            return real(tensor, *options)
        return self._shape(real, (tensor, *options), self._torch.bincount, None)

    def _repeat_interleave(self, real, repeats, *, output_size=None):
        if not repeats.is_cuda:
            return real(repeats, output_size=output_size)
        known = self._values.of(repeats)
        if known is not None:
            return self._on_device(self._torch.repeat_interleave(known), repeats.device)
        _doubt("value-shape", "shapes follow from values")
        return repeats.new_zeros(repeats.numel() if output_size is None else output_size, dtype=self._torch.long)

    def _index(self, real, tensor, indices):
        if not tensor.is_cuda:
            return real(tensor, indices)
        out = real(tensor, self._without_masks(indices))
        if self._values.small(out):
            known = self._on_host((tensor, [each for each in indices if each is not None]))
            if known is not None:
                given = iter(known[1])
                self._values.note(out, known[0][tuple(slice(None) if e is None else next(given) for e in indices)])
        return out

    def _index_put_(self, real, tensor, indices, values, *options):
        if tensor.is_cuda:
            masked = any(each is not None and each.dtype is self._torch.bool for each in indices)
            indices = self._without_masks(indices, values.shape[0] if masked and values.dim() else None)
        known = self._on_host((tensor, indices, values)) if tensor.is_cuda and self._values.small(tensor) else None
        real(tensor, indices, values, *options)
        self._raise_version(tensor)
        if known is not None:
            self._torch.ops.aten._index_put_impl_(*known, *options)
            self._values.wrote(tensor)
        return tensor

    def _without_masks(self, indices, selected=None):
        """Return indices with numbers in place of masks; of an unknown one, `selected` many, where that is given."""
        found = []
        for each in indices:
            if each is not None and each.dtype in (self._torch.bool, self._torch.uint8) and each.is_cuda:
                places = self._nonzero(self._torch.nonzero, each)  # not by dispatch: we are below our key
                if self._values.of(each) is None and selected not in (None, 1):
                    places = places.new_zeros((selected, each.dim()))
                found += places.unbind(1)
            else:
                found.append(each)
        return found

    # -- checks inside kernels -----------------------------------------------------------------------------------------

    def _multinomial(self, real, weights, count, replacement=False, *, generator=None):
        """A draw of one reads whether the weights are valid (aten/src/ATen/native/Distributions.cpp)."""
        if not weights.is_cuda or (replacement and count > 1):
            return real(weights, count, replacement, generator=generator)
        drawn = self._torch.empty_like(weights).exponential_(1, generator=generator)
        self._torch.div(weights, drawn, out=drawn)
        return drawn.argmax(-1, keepdim=True) if count == 1 else drawn.topk(count)[1]

    def _normal(self, real, mean, deviation, *, generator=None):
        """A tensor of deviations is read for negative ones (aten/src/ATen/native/DistributionTemplates.h)."""
        device = next(each for each in (mean, deviation) if isinstance(each, self._torch.Tensor))
        if not device.is_cuda:
            return real(mean, deviation, generator=generator)
        shapes = [each.shape for each in (mean, deviation) if isinstance(each, self._torch.Tensor)]
        out = device.new_empty(self._torch.broadcast_shapes(*shapes)).normal_(generator=generator)
        return out.mul_(deviation).add_(mean)


def _line(text, start):
    """Return the line of `text` that begins with `start`, or nothing."""
    return next((line for line in text.splitlines() if line.startswith(start)), "")
