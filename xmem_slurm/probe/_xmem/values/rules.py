"""What each operator does to known values, beside the launch that does nothing (see `values/known_values`).

The kernels here stand at the dispatch key ADInplaceOrView: below autograd, above the device. Those that torch has there
only raise the version counter (torch/csrc/autograd/VariableTypeUtils.h, 2.4 to 2.15), which is done here, too.
"""

import functools

from _xmem.values import lazy
from _xmem.values.assumed import Assumed
from _xmem.values.plausible import Plausible
from _xmem.values.shapes import Shapes
from _xmem.values.table import computed

_COMPUTED = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar
    ge.Tensor logical_not logical_and logical_or bitwise_not bitwise_and.Tensor bitwise_or.Tensor isnan isinf
    sum sum.dim_IntList max min amax amin all all.dim any any.dim count_nonzero count_nonzero.dim_IntList cumsum prod
    clone cat stack index_select gather repeat flip roll where.self floor_divide remainder.Scalar
    remainder.Tensor _is_all_true _is_any_true
    add.Scalar add.Tensor sub.Scalar sub.Tensor rsub.Scalar rsub.Tensor mul.Scalar mul.Tensor div.Scalar div.Tensor
    div.Scalar_mode div.Tensor_mode neg abs reciprocal
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar sqrt rsqrt exp log sin cos floor ceil round trunc sign
    minimum maximum clamp clamp_min clamp_max logical_xor bitwise_xor.Tensor
"""
"""Operators whose values are computed where those of all their tensors are known."""

_NOT_BY_ELEMENT = """
    sum max min amax amin all any count_nonzero cumsum prod cat stack index_select gather repeat flip roll _is_all_true
    _is_any_true
"""
"""Those of them, by their names, whose elements are not each made from one of each argument."""

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

_NUMBERS = {bool, int, float, complex}


class Rules:
    """Wraps operators of torch over the table `values`; `most` as for `Shapes`."""

    def __init__(self, torch, values, most):
        self._torch, self._values = torch, values
        self.assumed = Assumed(torch)
        self._plausible = Plausible(torch, values, most, self.assumed)
        self._shapes = Shapes(torch, values, most, self.assumed)
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
            (aten.triu.default, functools.partial(self._triangle, aten.triu.default)),
            (aten.tril.default, functools.partial(self._triangle, aten.tril.default)),
            *self._plausible.kernels(),
            *self._shapes.kernels(),
        ):
            self._wrap(operator, kernel)

    def _wrap(self, operator, kernel):
        """Put a kernel where torch dispatches the operator to below autograd."""
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
        """Return the kernel of an operator that is computed on the host beside."""
        name = operator._schema.name.rpartition("::")[2]
        by_element = name not in _NOT_BY_ELEMENT.split()

        def kernel(real, *args, **kwargs):
            """Note what comes out: computed, made up, or with the mark of what it was computed from."""
            out = real(*args, **kwargs)
            first = out[0] if isinstance(out, tuple) else out
            if not self._values.keeps(first):
                if by_element:
                    self._large(operator, name, out, args, kwargs)
                return out
            mark = self._values.mark(args)
            known = self._values.on_host(args)
            if known is not None and "device" not in kwargs:
                values = computed(operator, *known, **kwargs)
                if values is None:
                    return out
                mark = self._plausible.after(name, mark)
                pairs = zip(out, values) if isinstance(out, tuple) else [(out, values)]  # noqa: B905 - since Python 3.10
                for each, value in pairs:
                    self._values.note(each, value, mark)
            else:
                value = self._plausible.of(name, args, first)
                if value is not None:
                    values = self._torch.full(first.shape, value, dtype=first.dtype, device="cpu")
                    self._values.note(first, values, self._plausible.mark(name))
                elif mark is not None and not first.is_floating_point():
                    self._values.note(first, None, mark)
            return out

        return kernel

    def _large(self, operator, name, out, args, kwargs):
        """Keep how the values of a large result are made, where those of all that it is made from are known."""
        if self._values.is_gradient(out):
            return
        if not any(self._values.has(each) for each in args):
            asked = name in ("isnan", "isinf", "eq", "ne") and self._values.applies(out)
            value = self._plausible.of(name, args, out) if asked else None
            if value is not None:
                self._values.make(out, lazy.Full(self._torch, value, out.dtype))
            return
        given = []
        for each in args:
            if isinstance(each, self._torch.Tensor):
                known = self._values.seen(each) if each.is_cuda and not each.dim() else each
                if each.is_cuda and each.dim():
                    known = self._values.lazy(each)
                elif known is not None:
                    known = None if known.dim() else known.clone()
                if known is None:
                    return
                given.append(known)
            else:
                given.append(each)
        if any(isinstance(each, tuple) for each in given):
            made = lazy.elementwise(self._torch, operator, out.shape, given, kwargs)
            self._values.make(out, made, self._values.mark(args))

    def _triangle(self, operator, real, tensor, diagonal=0):
        out = real(tensor, diagonal)
        if self._values.keeps(out):
            known = self._values.seen(tensor)
            if known is not None:
                self._values.note(out, operator(known, diagonal), self._values.mark((tensor,)))
            return out
        found = self._values.lazy(tensor) if self._values.has(tensor) and tensor.is_contiguous() else None
        if found is not None and not found[3]:
            upper = operator is self._torch.ops.aten.triu.default
            made = lazy.triangle(self._torch, found[0], tensor.shape, diagonal, upper)
            self._values.make(out, made, self._values.mark((tensor,)))
        return out

    def _in_place(self, operator):
        """Return the kernel of an operator that writes to its first argument."""

        def kernel(real, target, *args, **kwargs):
            kept = self._values.of(target) if self._values.keeps(target) else None
            known = None if kept is None else self._values.on_host(args)
            mark = None if known is None else self._values.mark((target, *args))
            real(target, *args, **kwargs)
            self._raise_version(target)
            # The values share their storage with `kept`.
            if known is not None and computed(operator, kept, *known, **kwargs) is not None:
                self._values.wrote(target, mark)
            else:
                self._values.forget(target)
            return target

        return kernel

    def _over(self, operator):
        draws = operator._schema.name.endswith("::random_")

        def kernel(real, target, *args, **kwargs):
            real(target, *args, **kwargs)
            self._written_over(target)
            if draws and self._values.keeps(target) and not target.is_floating_point():
                self._values.note(target, None, self.assumed.mark("numbers by random_, not drawn here"))
            return target

        return kernel

    # -- reading -------------------------------------------------------------------------------------------------------

    def _local_scalar_dense(self, real, tensor):
        mark, known = self._values.mark((tensor,)), self._values.seen(tensor)
        self.assumed.read(mark)
        if known is not None:
            return known.item()
        if mark is None and self._values.applies(tensor):
            self.assumed.unknown(tensor)
        return real(tensor)

    def _to_copy(self, real, tensor, **kwargs):
        """A copy to the device keeps its values, one to the host reads them, a cast has them in another type."""
        if not tensor.is_cuda:
            out = real(tensor, **kwargs)
            if out.is_cuda:
                self._values.note(out, tensor)
            return out
        device = kwargs.get("device")
        if device is not None and device.type == "cpu":
            self.assumed.read(self._values.mark((tensor,)))
            known = self._values.seen(tensor)
            return real(tensor, **kwargs) if known is None else known.clone().to(kwargs.get("dtype") or tensor.dtype)
        out = real(tensor, **kwargs)
        self._values.copied(out, tensor)
        return out

    def _equal(self, real, one, other):
        known = self._values.on_host((one, other)) if one.is_cuda else None  # else below would come here again
        if known is None:
            return real(one, other)
        self.assumed.read(self._values.mark((one, other)))
        return self._torch.equal(*known)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _written(self, target, write, mark=None):
        """The device's tensor is written to whole by what `write` does to one on the host."""
        if not self._values.keeps(target):
            self._raise_version(target)
            return target
        host = self._values.of(target)
        self._raise_version(target)
        if host is not None and computed(write, host) is not None:
            self._values.wrote(target, mark)
            return target
        self._values.forget(target)
        if host is None and not target.is_inference():
            host = self._torch.empty(target.shape, dtype=target.dtype, device="cpu")
            if computed(write, host) is not None:
                self._values.note(target, host, mark)
        return target

    def _written_over(self, target):
        """The device's tensor is written to, with what is not known."""
        self._raise_version(target)
        self._values.forget(target)

    def _copy_(self, real, target, source, non_blocking=False):
        """The same where there is a target."""
        if source.is_cuda and not target.is_cuda:
            self.assumed.read(self._values.mark((source,)))
            known = self._values.seen(source)
            if known is not None:
                real(target, known, non_blocking)
                self._raise_version(target)
                return target
        real(target, source, non_blocking)
        if target.is_cuda and self._values.small(target):
            known = self._values.seen(source) if source.is_cuda else source
            if known is not None and type(known) in (self._torch.Tensor, self._torch.nn.Parameter):
                return self._written(target, lambda host: host.copy_(known), self._values.mark((source,)))
        self._written_over(target)
        if target.is_cuda and not source.is_cuda and target.shape == source.shape:
            self._values.note(target, source)
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
        return self._written(target, lambda host: host.fill_(known[0]), self._values.mark((value,)))

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


def _line(text, start):
    """Return the line of `text` that begins with `start`, or nothing."""
    return next((line for line in text.splitlines() if line.startswith(start)), "")
