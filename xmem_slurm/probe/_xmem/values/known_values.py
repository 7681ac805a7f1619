"""Values that are known although no kernel runs, so that what a script decides by them comes out as
on a GPU.

Note [Known values]: device memory has no contents. A small tensor that was copied from the host,
filled, or computed from such, has all the same: they are kept here, one host storage for each
device storage, and small operations on them are computed on the host beside the launch that does
nothing. They hold as long as the version counter of the tensor is the one that they were noted at:
whatever else writes to it in torch raises that. `x.data` has a counter of its own, so what is
written through it is forgotten by the operators that write (the common ones: `values/rules`); a
kernel of Triton's forgets all that it is given. So lengths, masks, labels, splits and graphs have
their real values when a script reads them or takes a shape from them. What the host cannot compute
is not known: it raises nothing.

Note [Plausible values]: what is not known follows from how it was made (`values/plausible`).
Everything is finite and no NaN; what is asked of `all` holds, as argument checks do; of a mask,
everything is selected and counted, because less would be quietly too small: `least` (XMEM_SHAPES)
selects nothing, which is the other end of the bracket. The places that sort and topk find are all
different, so that experts are used evenly. Other numbers are zeros, as in the stand-ins' memory,
but for losses and scores in the other of their courses (Note [Metrics], `values/metrics`). What of
this is said, and when, stands in Note [Assumed values] (`values/assumed`).

Note [Inference mode]: its tensors have neither version counters nor the dispatch key that our
kernels stand at. So it acts as `torch.no_grad` here, which keeps the same memory but for one thing:
from torch 2.11 on, autocast keeps no cast of a weight in inference mode
(aten/src/ATen/autocast_mode.cpp, cached_cast). Where this torch keeps none, that cache is off
meanwhile, whatever an autocast of the script's own switches on within.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from typing import TYPE_CHECKING, Any

from _xmem import doubts
from _xmem.values.factories import Factories
from _xmem.values.metrics import Metrics
from _xmem.values.rules import Rules
from _xmem.values.table import Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from _xmem.annotations import Environ, Function, Note, Tensor


class KnownValues:
    """Keeps the values of one process. `of` and `forget` are for whoever else has tensors."""

    def __init__(self, torch: ModuleType, environ: Environ) -> None:
        self._torch, self._assumes_most = torch, environ.get("XMEM_SHAPES", "most") == "most"
        self.metrics = Metrics(environ.get("XMEM_NUMBERS", "zeros"))
        """What the script reads of losses and scores."""
        self.table: Values | None = None
        """Of known values, once there is one (`Values`)."""
        self._rules: Rules | None = None
        self._factories = Factories(torch)
        self._casts = _Casts(torch)
        self.factory, self.draw = self._factories.factory, self._factories.draw
        self.first_gradients = self._factories.first_gradients
        self.cache_switched, self.cache_is_on = self._casts.switched, self._casts.whether_on

    def begin(self) -> None:
        """Keep values from now on; where this torch lacks what that needs, nothing is known, as
        without us.
        """
        self._factories.stand_in()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a kernel is replaced, which is what it warns of
            try:
                table = Values(self._torch)
                rules = Rules(self._torch, table, self._assumes_most, self.metrics)
                rules.register()
                self._factories.keep(table, rules.assumed)
                self.table, self._rules = table, rules
            except (AttributeError, TypeError, RuntimeError):
                doubts.note("values-unknown", "this torch does not let kernels be wrapped")

    @property
    def reads(self) -> int:
        """How often the host has read known or assumed values, or taken a shape from them."""
        return self._rules.assumed.looks if self._rules is not None else 0

    def doubt(self, note: Note) -> None:
        """Say in how many turns losses or scores were read that are not known, and which conditions
        went both ways.
        """
        for place in self.metrics.loops():
            note("forward-read", place)
        if self.metrics.most_turns > 1:
            note(
                "metrics-read",
                "losses or scores were read in so many turns",
                self.metrics.most_turns,
            )
        for question in self.metrics.both_ways():
            note("both-ways", question)

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor as one on the host; None where they are not known."""
        if not tensor.is_cuda:
            return tensor
        return self.table.of(tensor) if self.table is not None else None

    def origins(self) -> AbstractContextManager[set[int]]:
        """Return a context that gives a set, and fills it with the origins of what is read: see
        `values/table`.
        """
        return self.table.origins() if self.table is not None else contextlib.nullcontext(set())

    def fingerprint(self, tensor: Tensor) -> object | None:
        """Return what tells the values of a tensor on the device from others; None: they are not
        known.
        """
        return self.table.fingerprint(tensor) if self.table is not None else None

    def forget(self, arguments: Iterable[object]) -> None:
        """Whichever of these are tensors have been written to: what they hold is not known any
        more.
        """
        for argument in arguments:
            if self.table is not None and getattr(argument, "is_cuda", False):
                self.table.forget(argument)

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    def printed(self, text: Function, _owner: object) -> Function:
        """What a tensor looks like in print hangs on its values, and nothing on what it looks
        like: more than one value on the device stand as "...", as torch has it of tensors that have
        none. Some libraries print all parameters, each of them element by element.
        """

        def _str(tensor: Tensor, *, tensor_contents: str | None = None) -> str:
            if tensor_contents is None and tensor.is_cuda and tensor.numel() > 1:
                tensor_contents = "..."
            with doubts.kept():
                return text(tensor, tensor_contents=tensor_contents)

        return _str

    def entered(self, enter: Function, _owner: object) -> Function:
        """Let torch.inference_mode act as torch.no_grad; switched off (mode=False), it is what it
        was.
        """
        torch, casts = self._torch, self._casts

        @functools.wraps(enter)
        def entered(self: Any) -> None:
            context = contextlib.ExitStack()
            if self.mode:
                context.enter_context(torch.no_grad())
            else:
                enter(self)
                context.push(self._inference_mode_context)
            context.enter_context(casts.cached(not self.mode))
            self._inference_mode_context = context

        return entered

    def transformed(self, enter: Function, _owner: object) -> Function:
        """Around the begin of torch.func.grad and the like: no values are kept from there on.

        A number beside a tensor is wrapped for them; no kernel in Python can be given such
        (SystemError, torch 2.11).
        """

        @functools.wraps(enter)
        def entered(*args: Any, **kwargs: Any) -> Any:
            if self._rules is not None:
                self._rules.end()
                self._rules = self.table = None
                doubts.note("values-unknown", "torch.func takes derivatives")
            return enter(*args, **kwargs)

        return entered

    def loaded(self, move: Function, _owner: object) -> Function:
        """Around what copies a storage to the device: the tensor that torch.load makes over it has
        its bytes.
        """

        @functools.wraps(move)
        def moved(storage: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.nullcontext() if self.table is None else self.table.of_bytes():
                out = move(storage, *args, **kwargs)
            if (
                self.table is not None
                and out.device.type == "cuda"
                and storage.device.type == "cpu"
            ):
                self.table.loaded(out.untyped(), storage.untyped())
            return out

        return moved


class _Casts:
    """Autocast's cache of weights that were cast, and the switch that a script has for it: one for
    each thread.
    """

    _set: Callable[[bool], None]

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._set = torch, torch.set_autocast_cache_enabled
        self._of_thread = threading.local()
        self._inference_does: bool | None = None

    def switched(self, switch: Callable[[bool], None], _owner: object) -> Function:
        """Around torch's switch, which holds where the cache is allowed at all."""
        self._set = switch

        @functools.wraps(switch)
        def set_autocast_cache_enabled(enabled: bool) -> None:
            self._of_thread.on = enabled
            switch(enabled and getattr(self._of_thread, "allowed", True))

        return set_autocast_cache_enabled

    def whether_on(self, ask: Function, _owner: object) -> Function:
        """Around the question whether it is on."""
        return functools.wraps(ask)(lambda: self._is_on)

    @property
    def _is_on(self) -> bool:
        """Whether this thread of the script has it switched on."""
        return getattr(self._of_thread, "on", True)

    @contextlib.contextmanager
    def cached(self, allowed: bool) -> Iterator[None]:
        """Within this there is a cache where the script has it switched on, unless it is not
        `allowed`.
        """
        if self._inference_does is None and not self._torch._C._len_torch_dispatch_stack():
            self._inference_does = self._looked()
        before = getattr(self._of_thread, "allowed", True)
        self._allow(allowed or bool(self._inference_does))
        try:
            yield
        finally:
            self._allow(before)

    def _allow(self, allowed: bool) -> None:
        self._of_thread.allowed = allowed
        self._set(allowed and self._is_on)

    def _looked(self) -> bool:
        """Whether this torch's own inference mode finds a weight's cast again: 2.11 has stopped
        to.

        Not to be asked where tensors are no real ones, as while torch exports a model: there a
        number that is read becomes a part of what is traced, and torch stops.
        """
        torch = self._torch
        weight = torch.nn.Parameter(torch.zeros(1, 1, device="cpu"))
        row = torch.ones(1, 1, device="cpu")
        with (
            torch._C._InferenceMode(True),
            torch.autocast("cpu", torch.bfloat16, cache_enabled=True),
        ):
            torch.mm(row, weight)
            weight.data.fill_(1)
            return torch.mm(row, weight).item() == 0
