"""What each operator does to known values, beside the launch that does nothing (see `_xmem_known`).

The kernels here stand at the dispatch key ADInplaceOrView: below autograd, above the device. Those that torch has there
only raise the version counter (torch/csrc/autograd/VariableTypeUtils.h, 2.4 to 2.15), which is done here, too.
"""

import functools
import importlib
import math

import _xmem_known_shapes
from _xmem_known_values import computed

_COMPUTED = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar
    ge.Tensor logical_not logical_and logical_or bitwise_not bitwise_and.Tensor bitwise_or.Tensor isnan
    sum sum.dim_IntList max min amax amin all all.dim any any.dim count_nonzero count_nonzero.dim_IntList cumsum prod
    clone cat stack index_select gather repeat flip roll where.self floor_divide remainder.Scalar
    remainder.Tensor _is_all_true _is_any_true
    add.Scalar add.Tensor sub.Scalar sub.Tensor rsub.Scalar rsub.Tensor mul.Scalar mul.Tensor div.Scalar div.Tensor
    div.Scalar_mode div.Tensor_mode neg abs reciprocal
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar sqrt rsqrt exp log sin cos floor ceil round trunc sign
    minimum maximum clamp clamp_min clamp_max logical_xor bitwise_xor.Tensor
"""
"""Operators whose values are computed where those of all their tensors are known."""

_IN_PLACE = """
    add_.Scalar add_.Tensor sub_.Scalar sub_.Tensor mul_.Scalar mul_.Tensor div_.Scalar div_.Tensor neg_ clamp_
    clamp_min_ clamp_max_ logical_not_ logical_and_ logical_or_ __iand__.Tensor __ior__.Tensor bitwise_and_.Tensor
    bitwise_or_.Tensor
"""
"""The same of those that write to their first."""

_OVER = """
    random_ random_.from random_.to uniform_ normal_ bernoulli_.float bernoulli_.Tensor exponential_
    masked_fill_.Scalar masked_fill_.Tensor masked_scatter_ scatter_.src scatter_.value scatter_add_
    index_fill_.int_Scalar index_copy_ index_add_
"""
"""Those after which their first is not known, not even as the `x.data` of a tensor that has another version counter."""

_FACTORIES = "tensor as_tensor zeros ones full arange linspace logspace eye zeros_like ones_like full_like"
_METHODS = "new_zeros new_ones new_full new_tensor"
"""What makes tensors of values that are on the host. Their C++ is below our key already."""
_CONSTRUCTORS = "tensor as_tensor zeros ones full arange linspace logspace eye"
"""Those of them that a default device applies to."""
_COPIES = {"tensor", "as_tensor", "new_tensor"}
"""Those of them that may be given a tensor to copy, as `data`."""


_NUMBERS = {bool, int, float, complex}


class Rules:
    """Wraps operators of torch over the table `values`; `most` and `doubt` as for `Shapes`."""

    def __init__(self, torch, values, most, doubt):
        self._torch, self._values, self._most = torch, values, most
        self._shapes = _xmem_known_shapes.Shapes(torch, values, most, doubt)
        self._below = torch._C._after_ADInplaceOrView_keyset
        self._library = torch.library.Library("aten", "IMPL")
        self._raise_version = torch.autograd.graph.increment_version

    def register(self):
        """Put every kernel in its place."""
        aten = self._torch.ops.aten
        for names, kernel in ((_COMPUTED, self._computed), (_IN_PLACE, self._in_place), (_OVER, self._over)):
            for name in names.split():
                packet, _, overload = name.partition(".")
                operator = getattr(getattr(aten, packet), overload or "default", None)
                if operator is not None:
                    self._wrap(operator, kernel(operator))
        for operator, kernel in (
            (aten._local_scalar_dense.default, self._local_scalar_dense),
            (aten._to_copy.default, self._to_copy),
            (aten.copy_.default, self._copy_),
            (aten.fill_.Scalar, self._fill_),
            (aten.fill_.Tensor, self._fill_with),
            (aten.zero_.default, self._zero_),
            (aten._foreach_add_.Scalar, self._foreach_add_),
            (aten.equal.default, self._equal),
            (aten.topk.default, self._topk),
            (aten.sort.default, functools.partial(self._sort, aten.sort.default)),
            (aten.sort.stable, functools.partial(self._sort, aten.sort.stable)),
            (aten.multinomial.default, self._multinomial),
            (aten.normal.Tensor_Tensor, self._normal),
            (aten.normal.Tensor_float, self._normal),
            (aten.normal.float_Tensor, self._normal),
            *self._shapes.kernels(),
        ):
            self._wrap(operator, kernel)
        for place, names in ((self._torch, _FACTORIES), (self._torch.Tensor, _METHODS)):
            for name in names.split():
                setattr(place, name, self._factory(place, name))
        # `with torch.device(...)` is told of the originals; it lists its functions once, and may not have so far.
        constructors = importlib.import_module("torch.utils._device")._device_constructors()
        constructors.update(getattr(self._torch, name).__wrapped__ for name in _CONSTRUCTORS.split())
        # TorchScript knows its functions by identity; where it has listed them already, ours are told to it.
        listed = self._torch.jit._builtins._builtin_table or {}
        for name in _FACTORIES.split():
            made = getattr(self._torch, name)
            if id(made.__wrapped__) in listed:
                listed[id(made)] = listed[id(made.__wrapped__)]

    def _factory(self, place, name):
        make, place_of_data = getattr(place, name), int(place is self._torch.Tensor)

        @functools.wraps(make)
        def made(*args, **kwargs):
            out = make(*args, **kwargs)
            if self._values.keeps(out) and not out.is_inference() and "out" not in kwargs:
                kwargs.update(device="cpu", dtype=out.dtype)
                if "requires_grad" in kwargs:
                    kwargs["requires_grad"] = False
                kwargs.pop("layout", None)
                data = kwargs.get("data", args[place_of_data] if len(args) > place_of_data else None)
                if name in _COPIES and isinstance(data, self._torch.Tensor) and data.is_cuda:
                    values = self._values.of(data)
                else:
                    values = computed(make, *args, **kwargs)
                if values is not None:
                    self._values.note(out, values)
            return out

        # As pickle finds it; the original's names are those of a class that holds only originals.
        made.__module__, made.__name__ = "torch", name
        made.__qualname__ = name if place is self._torch else "Tensor." + name
        return made

    def _wrap(self, operator, kernel):
        # An operator that nothing differentiates goes from autograd's fallback past our key: there it is caught before.
        past = "(none)" in _line(self._torch._C._dispatch_dump(operator.name()), "Autograd[alias]")
        redispatch, below = operator.redispatch, self._torch._C._after_autograd_keyset if past else self._below
        tensors = [
            index for index, each in enumerate(operator._schema.arguments) if str(each.type) in ("Tensor", "Tensor?")
        ]

        def called(keys, *args, **kwargs):
            # A number that C++ wrapped as a tensor comes here as a number, and cannot go back as one.
            for index in tensors:
                if index < len(args) and type(args[index]) in _NUMBERS:
                    args = self._with_tensors(args, tensors)
            return kernel(functools.partial(redispatch, keys & below), *args, **kwargs)

        self._library.impl(operator, called, "AutogradCUDA" if past else "ADInplaceOrView", with_keyset=True)

    def _with_tensors(self, args, tensors):
        torch, args = self._torch, list(args)
        like = next((each for each in args if isinstance(each, torch.Tensor)), None)
        for index in tensors:
            if index < len(args) and type(args[index]) in _NUMBERS:
                kind = torch.result_type(self._alike(like), args[index]) if like is not None else None
                args[index] = torch.scalar_tensor(args[index], dtype=kind, device="cpu")
        return args

    def _alike(self, tensor):
        """Return a host tensor that types are promoted by as by this one, whose class may not know how (DTensor)."""
        return self._torch.empty((1,) * tensor.dim(), dtype=tensor.dtype, device="cpu")

    # -- operators that are computed -----------------------------------------------------------------------------------

    def _computed(self, operator):
        name = operator._schema.name.rpartition("::")[2]

        def kernel(real, *args, **kwargs):
            out = real(*args, **kwargs)
            first = out[0] if isinstance(out, tuple) else out
            if not self._values.keeps(first):
                return out
            known = self._values.on_host(args)
            if known is not None and "device" not in kwargs:
                values = computed(operator, *known, **kwargs)
                if values is None:
                    return out
                pairs = zip(out, values) if isinstance(out, tuple) else [(out, values)]  # noqa: B905 - since Python 3.10
                for each, value in pairs:
                    self._values.note(each, value)
            else:
                value = self._plausible(name, args)
                if value is not None:
                    self._values.note(out, self._torch.full(out.shape, value, dtype=out.dtype, device="cpu"))
            return out

        return kernel

    def _in_place(self, operator):
        def kernel(real, target, *args, **kwargs):
            known = self._values.on_host((target, *args)) if self._values.keeps(target) else None
            real(target, *args, **kwargs)
            self._raise_version(target)
            # The values share their storage with `known[0]`.
            if known is not None and computed(operator, *known, **kwargs) is not None:
                self._values.wrote(target)
            else:
                self._values.forget(target)
            return target

        return kernel

    def _over(self, _operator):
        def kernel(real, target, *args, **kwargs):
            real(target, *args, **kwargs)
            self._written_over(target)
            return target

        return kernel

    def _plausible(self, name, args):
        """Return what every element of a result is that is not known, or None: see Note [Plausible values]."""
        tensor, other = args[0], args[1] if len(args) > 1 else None
        if name in ("isnan", "all", "_is_all_true"):
            return name != "isnan"
        if name in ("sum", "count_nonzero") and tensor.dtype is self._torch.bool and self._most and not other:
            return tensor.numel()
        if name in ("eq", "ne"):
            itself = isinstance(other, self._torch.Tensor) and _same(tensor, other)
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
        if known is not None and self._values.keeps(out):
            self._values.note(out, known)
        return out

    def _equal(self, real, one, other):
        known = self._values.on_host((one, other)) if one.is_cuda else None  # else below would come here again
        return real(one, other) if known is None else self._torch.equal(*known)

    def _topk(self, real, tensor, k, dim=-1, *options):
        """Of values that are not known the places are all different, and each is as frequent as any: even routing."""
        out = real(tensor, k, dim, *options)
        if self._values.applies(tensor) and tensor.dim() and tensor.shape[dim] and self._values.small(out[1]):
            known = self._values.on_host((tensor,))
            values = None if known is None else computed(self._torch.topk, known[0], k, dim, *options)
            if values is not None:
                places = values[1]
            else:
                rows = self._torch.arange(out[1].numel() // max(1, k), device="cpu")[:, None]
                places = (rows - 1 - self._torch.arange(k, device="cpu")) % tensor.shape[dim]
                places = places.reshape(out[1].transpose(dim, -1).shape).transpose(dim, -1)
            self._values.note(out[1], places)
        return out

    def _sort(self, operator, real, tensor, *args, **options):
        """Values that are not known come out in the order in which they are: each place once."""
        out = real(tensor, *args, **options)
        if self._values.applies(tensor) and tensor.dim() and self._values.small(out[1]):
            known = self._values.on_host((tensor,))
            found = None if known is None else computed(operator, known[0], *args, **options)
            if found is not None:
                for each, values in zip(out, found):  # noqa: B905 - since Python 3.10
                    self._values.note(each, values)
            else:
                dim = options.get("dim", args[0] if args else -1)
                places = self._torch.arange(tensor.shape[dim], device="cpu").expand(tensor.transpose(dim, -1).shape)
                self._values.note(out[1], places.transpose(dim, -1))
        return out

    # -- writing -------------------------------------------------------------------------------------------------------

    def _written(self, target, write):
        """The device's tensor is written to whole by what `write` does to one on the host."""
        if not self._values.keeps(target):
            self._raise_version(target)
            return target
        host = self._values.of(target)
        self._raise_version(target)
        if host is not None and computed(write, host) is not None:
            self._values.wrote(target)
            return target
        self._values.forget(target)
        if host is None and not target.is_inference():
            host = self._torch.empty(target.shape, dtype=target.dtype, device="cpu")
            if computed(write, host) is not None:
                self._values.note(target, host)
        return target

    def _written_over(self, target):
        """The device's tensor is written to, with what is not known."""
        self._raise_version(target)
        self._values.forget(target)

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
        self._written_over(target)
        return target

    def _fill_(self, real, target, value):
        real(target, value)
        return self._written(target, lambda host: host.fill_(value))

    def _fill_with(self, real, target, value):
        known = self._values.on_host((value,))
        real(target, value)
        if known is None:
            self._written_over(target)
            return target
        return self._written(target, lambda host: host.fill_(known[0]))

    def _zero_(self, real, target):
        real(target)
        return self._written(target, lambda host: host.zero_())

    def _foreach_add_(self, real, targets, number):
        """Optimizers count their steps by this where the counts are on the device."""
        known = [self._values.of(each) if self._values.keeps(each) else None for each in targets]
        real(targets, number)
        for target, host in zip(targets, known):  # noqa: B905 - since Python 3.10
            self._raise_version(target)
            if host is not None and computed(host.add_, number) is not None:
                self._values.wrote(target)
            else:
                self._values.forget(target)

    # -- checks inside kernels -----------------------------------------------------------------------------------------

    def _multinomial(self, real, weights, count, replacement=False, *, generator=None):
        """A draw of one reads whether the weights are valid (aten/src/ATen/native/Distributions.cpp)."""
        if not weights.is_cuda or (replacement and count > 1):
            return real(weights, count, replacement, generator=generator)
        drawn = self._torch.empty_like(weights).exponential_(1, generator=generator)
        self._torch.div(weights, drawn, out=drawn)
        return drawn.argmax(-1, keepdim=True) if count == 1 else drawn.topk(count)[1]

    def _normal(self, real, mean, deviation=1.0, *, generator=None):
        """A tensor of deviations is read for negative ones (aten/src/ATen/native/DistributionTemplates.h)."""
        device = next(each for each in (mean, deviation) if isinstance(each, self._torch.Tensor))
        if not device.is_cuda:
            return real(mean, deviation, generator=generator)
        shapes = [each.shape for each in (mean, deviation) if isinstance(each, self._torch.Tensor)]
        out = device.new_empty(self._torch.broadcast_shapes(*shapes)).normal_(generator=generator)
        return out.mul_(deviation).add_(mean)


def _same(one, other):
    """Whether these are the same elements in the same places: two views of one tensor need not be."""
    same = other.is_cuda and one.data_ptr() == other.data_ptr() and one.dtype is other.dtype
    return same and one.shape == other.shape and one.stride() == other.stride()


def _line(text, start):
    """Return the line of `text` that begins with `start`, or nothing."""
    return next((line for line in text.splitlines() if line.startswith(start)), "")
