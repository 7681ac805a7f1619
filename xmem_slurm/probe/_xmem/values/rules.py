"""What each operator does to known values, beside the launch that does nothing (see
`values/known_values`).

The kernels here stand at the dispatch key ADInplaceOrView: below autograd, above the device. Those
that torch has there only raise the version counter (torch/csrc/autograd/VariableTypeUtils.h, 2.4 to
2.15), which is done here, too.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from _xmem import doubts
from _xmem.values import lazy, operators
from _xmem.values.assumed import Assumed
from _xmem.values.metrics import MOST_METRICS
from _xmem.values.plausible import COMPARED, COUNTS, Plausible
from _xmem.values.reads import Reads
from _xmem.values.shapes import Shapes
from _xmem.values.table import computed
from _xmem.values.unmoved import check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from _xmem.annotations import Function, Tensor
    from _xmem.values.assumed import AssumedMark
    from _xmem.values.metrics import Metrics
    from _xmem.values.table import Values
    from _xmem.values.unmoved import Unmoved

_OF_ONE = {"any", "all", "max", "min", "_is_all_true", "_is_any_true"}
"""What is the same of one number as of that number everywhere: no need to look at each."""
_NUMBERS = {bool, int, float, complex}

MOST_NUMBERS = 256
"""Numbers that are remembered as tensors."""


class Rules:
    """Wraps operators of torch over the table `values`; `assumes_most` as for `Shapes`.

    `metrics` say what a script reads of losses and scores that are not known.
    """

    def __init__(
        self, torch: ModuleType, values: Values, assumes_most: bool, metrics: Metrics
    ) -> None:
        self._torch, self._values, self._metrics = torch, values, metrics
        self.assumed = Assumed(torch)
        self._plausible = Plausible(torch, values, assumes_most, self.assumed, metrics)
        self._shapes = Shapes(torch, values, assumes_most, self.assumed)
        self._below = torch._C._after_ADInplaceOrView_keyset
        self._ours = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
        self._library = torch.library.Library("aten", "IMPL")
        self._raise_version = torch.autograd.graph.increment_version
        self._numbers: dict[Any, Tensor] = {}

    def register(self) -> None:
        """Put every kernel in its place."""
        parts = {"rules": self, "plausible": self._plausible, "shapes": self._shapes}
        for rule, name, operator in operators.of(self._torch.ops.aten):
            if operator is None:
                doubts.note("values-unknown", "no torch.ops.aten.%s in this release" % name)
                continue
            part, _, method = rule.partition(".")
            kernel = getattr(parts[part], method)
            unmoved = check(self._torch, self._values, rule, _name(operator))
            if rule in operators.OF_SEVERAL:
                kernel = functools.partial(kernel, operator)
            self._wrap(operator, kernel, unmoved, rule in operators.WRITING)

    def end(self) -> None:
        """Give torch its own kernels back."""
        self._library._destroy()

    def _wrap(self, operator: Any, kernel: Function, unmoved: Unmoved | None, writes: bool) -> None:
        """Put a kernel where torch dispatches the operator to below autograd.

        Calls that are `unmoved` go on without it (Note [Unmoved values]); the operator `writes` to
        its first argument, or not.
        """
        # An operator that nothing differentiates goes from autograd's fallback past our key: there
        # it is caught before.
        # So is what gives no tensor, as a key of the device's alone: an optimizer reads its steps
        # on the host.
        none = "(none)" in _line(self._torch._C._dispatch_dump(operator.name()), "Autograd[alias]")
        past = none or operator.name() in operators.OF_THE_DEVICE
        redispatch = operator._handle.redispatch_boxed
        below = self._torch._C._after_autograd_keyset if past else self._below
        tensors = [
            index
            for index, argument in enumerate(operator._schema.arguments)
            if str(argument.type) in ("Tensor", "Tensor?")
        ]

        def called(keys: Any, *args: Any, **kwargs: Any) -> Any:
            # A number that C++ wrapped as a tensor comes here as a number, and cannot go back as
            # one.
            for index in tensors:
                if index < len(args) and type(args[index]) in _NUMBERS:
                    if self._torch._C._len_torch_dispatch_stack():
                        return traced(*args, **kwargs)
                    args = self._with_tensors(args, tensors)
            if unmoved is not None and unmoved(args, kwargs):
                out = redispatch(keys & below, *args, **kwargs)
                return self._wrote(args[0]) if writes else out
            real = functools.partial(redispatch, keys & below)
            return self._values.within(
                functools.partial(kernel, real, *args, **kwargs), self.assumed.looked
            )

        def traced(*args: Any, **kwargs: Any) -> Any:
            # A tensor made of a number would stand in the graph, of which torch.compile then makes
            # another plan.
            with self._torch._C._AutoDispatchBelowAutograd(), self._unwatched():
                out = operator(*args, **kwargs)
            return self._wrote(args[0]) if writes else out

        self._library.impl(
            operator, called, "AutogradCUDA" if past else "ADInplaceOrView", with_keyset=True
        )

    def _unwatched(self) -> Any:
        """Within this, torch calls no kernel at our key, be it ours or torch's own."""
        return self._torch._C._ExcludeDispatchKeyGuard(self._ours)

    def _wrote(self, target: Tensor) -> Tensor:
        """A launch has written to a tensor that was not known; what it called may have noted it."""
        self._raise_version(target)
        if self._values.may_know((target,)):
            self._values.forget(target)
        return target

    def _with_tensors(self, args: tuple[Any, ...], tensors: list[int]) -> tuple[Any, ...]:
        """Return the arguments with tensors in place of numbers, as the operator has them."""
        arguments, plain = list(args), self._torch.Tensor
        like = args[0]
        if type(like) is not plain:
            like = next((argument for argument in args if isinstance(argument, plain)), None)
        for index in tensors:
            if index < len(args) and type(args[index]) in _NUMBERS:
                arguments[index] = self._tensor(args[index], like)
        return tuple(arguments)

    def _tensor(self, number: complex, like: Tensor | None) -> Tensor:
        """Return a number as a tensor that nobody writes to, of the type of what is computed of
        both.

        That type hangs on no more than this of `like`, and scripts compute with few numbers, again
        and again.
        """
        torch = self._torch
        kind = like is not None and (like.dtype, like.dim() > 0)
        key = number, type(number), kind, torch.get_default_dtype()
        tensor = self._numbers.get(key) if number else None  # 0.0 and -0.0 are one key
        if tensor is None:
            # a tensor's class may not know (DTensor)
            if like is not None and type(like) is not torch.Tensor:
                like = torch.empty((1,) * like.dim(), dtype=like.dtype, device="cpu")
            dtype = None if like is None else torch.result_type(like, number)
            tensor = torch._C._VariableFunctions.scalar_tensor(number, dtype=dtype, device="cpu")
            if len(self._numbers) >= MOST_NUMBERS:
                self._numbers.clear()
            self._numbers[key] = tensor
        return tensor

    # -- operators that are computed ---------------------------------------------------------------

    def by_element(self, operator: Any, real: Function, *args: Any, **kwargs: Any) -> Tensor:
        """Compute on the host beside, element by element: of a large result keep how it is made."""
        out = real(*args, **kwargs)
        if self._values.keeps(out):
            self._note(operator, out, args, kwargs)
        else:
            self._large(operator, out, args, kwargs)
        return out

    def as_a_whole(self, operator: Any, real: Function, *args: Any, **kwargs: Any) -> Any:
        """Compute on the host beside."""
        out = real(*args, **kwargs)
        if self._values.keeps(out[0] if isinstance(out, tuple) else out):
            self._note(operator, out, args, kwargs)
        return out

    def _note(self, operator: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what comes out: computed, made up, or with the mark of what it was computed from."""
        name, first = _name(operator), out[0] if isinstance(out, tuple) else out
        mark = self._values.mark(args)
        one = self._values.everywhere(args[0]) if name in _OF_ONE and len(args) == 1 else None
        host_args = self._values.on_host(args) if one is None else [one]
        if host_args is None and name == "where":
            host_args = self._on_one_side(args)
        if name in COUNTS and mark is not None and mark.equals:
            host_args = None  # how many are right is a score, also where each was made up
        if host_args is not None and "device" not in kwargs:
            values = computed(operator, *host_args, **kwargs)
            if values is not None:
                self._values.note_all(out, values, self._plausible.after(name, mark))
            return
        value = self._plausible.of(name, args, first, mark)
        if value is not None:
            values = self._torch.full(first.shape, value, dtype=first.dtype, device="cpu")
            self._values.note(first, values, self._plausible.mark(name))
        elif mark is not None and not first.is_floating_point():
            self._values.note(first, None, mark._replace(truths=False))
        elif name == "eq":
            self._values.note(first, None, self.assumed.mark_of_unknown()._replace(equals=True))

    def _on_one_side(self, args: Sequence[Any]) -> list[Any] | None:
        """Return the arguments of a `where` that takes all from one side, which alone is known;
        else None.
        """
        condition = self._values.values_of(args[0])
        if condition is None or not condition.numel() or condition.any() != condition.all():
            return None
        (selected,) = self._values.on_host(args[1:2] if condition.any() else args[2:3]) or [None]
        return None if selected is None else [condition, selected, selected]

    def _large(
        self, operator: Any, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep how the values of a large result are made, where those of all that it is made from
        are known.
        """
        if self._values.is_gradient(out):
            return
        if not any(self._values.has(arg) for arg in args):
            name = _name(operator)
            assumable = name in {"isnan", "isinf", "eq", "ne", *COMPARED} and self._values.applies(
                out
            )
            value = self._plausible.of(name, args, out) if assumable else None
            if value is not None:
                self._values.make(out, lazy.Full(self._torch, value, out.dtype))
            return
        operands = []
        for arg in args:
            operand = arg
            if isinstance(arg, self._torch.Tensor):
                if arg.dim():
                    operand = self._values.lazy(arg) if arg.is_cuda else None
                else:
                    host = self._values.on_host((arg,))
                    operand = None if host is None else host[0].clone()
                if operand is None:
                    return
            operands.append(operand)
        if any(isinstance(operand, lazy.LazyView) for operand in operands):
            recipe = computed(lazy.elementwise, self._torch, operator, out.shape, operands, kwargs)
            self._values.make(out, recipe, self._values.mark(args))

    def triangle(self, operator: Any, real: Function, tensor: Tensor, diagonal: int = 0) -> Tensor:
        """Compute triu or tril; of a large result keep how it is made."""
        out = real(tensor, diagonal)
        if self._values.keeps(out):
            host_values = self._values.values_of(tensor)
            if host_values is not None:
                self._values.note(
                    out, operator(host_values, diagonal), self._values.mark((tensor,))
                )
            return out
        view = None
        if self._values.has(tensor) and tensor.is_contiguous():
            view = self._values.lazy(tensor)
        if view is not None and not view.offset:
            upper = operator is self._torch.ops.aten.triu.default
            recipe = lazy.triangle(self._torch, view.lazy, tensor.shape, diagonal, upper)
            self._values.make(out, recipe, self._values.mark((tensor,)))
        return out

    def in_place(
        self, operator: Any, real: Function, target: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Compute what is written to the first argument."""
        kept = self._values.of(target) if self._values.keeps(target) else None
        host_args = None if kept is None else self._values.on_host(args)
        mark = None if host_args is None else self._values.mark((target, *args))
        real(target, *args, **kwargs)
        self._raise_version(target)
        # The values share their storage with `kept`.
        if host_args is not None and computed(operator, kept, *host_args, **kwargs) is not None:
            self._values.wrote(target, mark)
        else:
            self._values.forget(target)
        return target

    def scatter_(self, operator: Any, real: Function, target: Tensor, *written: Any) -> Tensor:
        """Compute what is written to picked places; of a large tensor that was one number
        everywhere keep which.
        """
        if self._values.keeps(target):
            return self.in_place(operator, real, target, *written)
        view = self._values.lazy(target) if self._values.has(target) else None
        host_args = None if view is None else self._values.on_host(written)
        if (
            view is None
            or host_args is None
            or type(view.lazy) is not lazy.Full
            or not lazy.is_whole(view, target.shape)
        ):
            return self.over(operator, real, target, *written)
        mark = self._values.mark((target, *written))
        real(target, *written)
        recipe = computed(lazy.scattered, self._torch, view.lazy, target.shape, host_args)
        self._written_over(target)
        self._values.make(target, recipe, mark)
        return target

    def over(
        self, operator: Any, real: Function, target: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        real(target, *args, **kwargs)
        self._written_over(target)
        if (
            _name(operator) == "random_"
            and self._values.keeps(target)
            and not target.is_floating_point()
        ):
            # One of 2**63 numbers is a seed, such as torch draws for the dropout of RNNs: nobody
            # decides by it.
            is_seed = target.dim() == 0 and not args
            seed = self._torch.zeros_like(target, device="cpu") if is_seed else None
            mark = None if is_seed else self.assumed.mark("numbers by random_, not drawn here")
            self._values.note(target, seed, mark)
        return target

    # -- reading -----------------------------------------------------------------------------------

    def local_scalar_dense(self, real: Function, tensor: Tensor) -> Any:
        mark, host_values = self._values.mark((tensor,)), self._values.values_of(tensor)
        unknown = host_values is None and (mark is None or mark.equals)
        self.assumed.read(None if unknown else mark)
        if host_values is not None:
            return host_values.item()
        value, is_made_up = Reads.of_zeros(lambda: real(tensor))
        if is_made_up and unknown and self._values.applies(tensor):
            return self._unknown(tensor, value)
        return value

    def _number(self) -> float:
        """Return what is read now of floating point that is not known."""
        line = self.assumed.line() if self._torch.is_grad_enabled() else None
        if line is None:
            return self._metrics.number(self.assumed.place())
        return self._metrics.number_in_training(line)

    def _unknown(self, tensor: Tensor, zero: Any) -> Any:
        """Return what the script reads of one value that is not known, nor anything of it."""
        if tensor.is_floating_point():
            return self._number()
        if tensor.is_complex():
            return zero
        line = self.assumed.line() if tensor.dtype is self._torch.bool else None
        if line is not None:
            return self._metrics.truth(line, self.assumed.doubt_condition())
        self.assumed.unknown()
        return zero

    def to_copy(self, real: Function, tensor: Tensor, **kwargs: Any) -> Tensor:
        """A copy to the device keeps its values, one to the host reads them, a cast has them in
        another type.
        """
        if not tensor.is_cuda:
            out = real(tensor, **kwargs)
            if out.is_cuda:
                self._values.note(out, tensor)
            return out
        device = kwargs.get("device")
        if device is not None and device.type == "cpu":
            mark, host_values = self._values.mark((tensor,)), self._values.values_of(tensor)
            equal = (
                host_values is None
                and mark is not None
                and mark.equals
                and tensor.dtype is self._torch.bool
            )
            self.assumed.read(None if equal else mark)
            if host_values is not None:
                return host_values.clone().to(kwargs.get("dtype") or tensor.dtype)
            question = self.assumed.doubt_condition() if equal else None
            return self._filled(tensor, lambda: real(tensor, **kwargs), question)
        out = real(tensor, **kwargs)
        truths = (
            tensor.dtype is self._torch.bool
            and not out.is_floating_point()
            and self._values.keeps(out)
        )
        if truths and self._values.values_of(tensor) is None:
            mark = self._values.mark((tensor,)) or self.assumed.mark_of_unknown()
            self._values.note(out, None, mark._replace(truths=True))
        else:
            self._values.copied(out, tensor)
        return out

    def _filled(
        self, source: Tensor, copy: Callable[[], Tensor], question: str | None = None
    ) -> Tensor:
        """Return what is copied to the host; numbers that are not known may be losses, and are what
        those are.

        `question`: whether some are equal, as predictions and labels, which is so of all of
        them, or of none.
        """
        out, is_made_up = Reads.of_zeros(copy)
        few = source.numel() <= MOST_METRICS and self._values.applies(source)
        if is_made_up and few and type(out) is self._torch.Tensor:
            number: float = 0
            if source.is_floating_point():
                number = self._number()
            elif question is not None:
                number = self._metrics.truth(self.assumed.place(), question)
            if number:
                with self._unwatched():
                    out.detach().fill_(number)
        return out

    def equal(self, real: Function, one: Tensor, another: Tensor) -> bool:
        # else below would come here again
        host_args = self._values.on_host((one, another)) if one.is_cuda else None
        if host_args is None:
            return real(one, another)
        self.assumed.read(self._values.mark((one, another)))
        return self._torch.equal(*host_args)

    # -- writing -----------------------------------------------------------------------------------

    def _written(
        self, target: Tensor, write: Callable[[Tensor], Tensor], mark: AssumedMark | None = None
    ) -> Tensor:
        """The device's tensor is written to whole by what `write` does to one on the host."""
        if not self._values.keeps(target):
            self._raise_version(target)
            return target
        host = self._values.of(target)
        self._raise_version(target)
        with self._unwatched():
            if host is not None and computed(write, host) is not None:
                self._values.wrote(target, mark)
                return target
            self._values.forget(target)
            if host is None and not target.is_inference():
                host = self._torch.empty(target.shape, dtype=target.dtype, device="cpu")
                if computed(write, host) is not None:
                    self._values.note(target, host, mark)
        return target

    def _written_over(self, target: Tensor) -> None:
        """The device's tensor is written to, with what is not known."""
        self._raise_version(target)
        self._values.forget(target)

    def copy_(
        self, real: Function, target: Tensor, source: Tensor, non_blocking: bool = False
    ) -> Tensor:
        """The same where there is a target."""
        if source.is_cuda and not target.is_cuda:
            self.assumed.read(self._values.mark((source,)))
            host_values = self._values.values_of(source)
            if host_values is not None:
                real(target, host_values, non_blocking)
                self._raise_version(target)
                return target
            self._filled(source, lambda: real(target, source, non_blocking))
            self._raise_version(target)
            return target
        real(target, source, non_blocking)
        if target.is_cuda and self._values.small(target):
            host_values = self._values.values_of(source) if source.is_cuda else source
            if host_values is not None and type(host_values) in (
                self._torch.Tensor,
                self._torch.nn.Parameter,
            ):
                return self._written(
                    target, lambda host: host.copy_(host_values), self._values.mark((source,))
                )
        self._written_over(target)
        if target.is_cuda and not source.is_cuda and target.shape == source.shape:
            self._values.note(target, source)
        return target

    def fill_(self, real: Function, target: Tensor, value: Any) -> Tensor:
        real(target, value)
        return self._written(target, lambda host: host.fill_(value))

    def fill_with(self, real: Function, target: Tensor, value: Tensor) -> Tensor:
        host_args = self._values.on_host((value,))
        real(target, value)
        if host_args is None:
            self._written_over(target)
            return target
        return self._written(
            target, lambda host: host.fill_(host_args[0]), self._values.mark((value,))
        )

    def zero_(self, real: Function, target: Tensor) -> Tensor:
        # That of a plain tensor calls `fill_`, of which no more is to be seen.
        plain = self._values.applies(target) and target.layout is self._torch.strided
        with self._unwatched() if plain else contextlib.nullcontext():
            real(target)
        return self._written(target, lambda host: host.zero_())

    def foreach_add_(self, real: Function, targets: Sequence[Tensor], number: Any) -> None:
        """Optimizers count their steps by this where the counts are on the device."""
        hosts = [
            self._values.of(target) if self._values.keeps(target) else None for target in targets
        ]
        self._each_added(real, targets, number)
        for target, host in zip(targets, hosts):  # noqa: B905 - since Python 3.10
            self._raise_version(target)
            if host is not None and computed(host.add_, number) is not None:
                self._values.wrote(target)
            else:
                self._values.forget(target)

    def foreach_add_of(
        self, real: Function, targets: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> None:
        """The same by a number that is a tensor. On the device torch raises the versions itself."""
        self._each_added(real, targets, *args, **kwargs)

    def _each_added(
        self, real: Function, targets: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> None:
        """Go on; on the host torch calls `add_` for each of them, which needs no kernel of ours."""
        if any(target.is_cuda for target in targets):
            real(targets, *args, **kwargs)
            return
        with self._unwatched():
            real(targets, *args, **kwargs)
        for target in targets:
            self._raise_version(target)

    def unscaled(
        self, real: Function, gradients: Sequence[Tensor], found_inf: Tensor, inverse_scale: Tensor
    ) -> None:
        """GradScaler looks whether its gradients are finite. All are: what was found before
        holds.
        """
        is_known, mark = self._values.has(found_inf), self._values.mark((found_inf,))
        real(gradients, found_inf, inverse_scale)
        for tensor in (*gradients, found_inf):
            self._raise_version(tensor)
        if is_known:
            self._values.wrote(found_inf, mark)

    def scale_updated(
        self,
        operator: Any,
        real: Function,
        scale: Tensor,
        growth: Tensor,
        found_inf: Tensor,
        *rule: Any,
    ) -> Tensor:
        """GradScaler's scale and the steps since it grew, by its own rule; where it is not known,
        nothing was found.
        """
        kept = [
            self._values.of(tensor) if self._values.keeps(tensor) else None
            for tensor in (scale, growth)
        ]
        host_inf = self._values.on_host((found_inf,)) or [
            self._torch.zeros(found_inf.shape, device="cpu")
        ]
        real(scale, growth, found_inf, *rule)
        are_known = all(host is not None for host in kept)
        is_computed = are_known and computed(operator, *kept, *host_inf, *rule) is not None
        for tensor in (scale, growth):
            self._raise_version(tensor)
            if is_computed:
                self._values.wrote(tensor)
            else:
                self._values.forget(tensor)
        return scale


def _name(operator: Any) -> str:
    """Return an operator's name without its overload's."""
    return operator._schema.name.rpartition("::")[2]


def _line(text: str, start: str) -> str:
    """Return the line of `text` that begins with `start`, or nothing."""
    return next((line for line in text.splitlines() if line.startswith(start)), "")
