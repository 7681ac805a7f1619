"""Functions of torch that make tensors: their C++ is below the key of the other rules, so they are
wrapped by name.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import TYPE_CHECKING, Any

from _xmem.values import lazy
from _xmem.values.table import computed

if TYPE_CHECKING:
    from types import ModuleType

    from _xmem.annotations import Function, Tensor
    from _xmem.values.assumed import Assumed
    from _xmem.values.lazy import Recipe
    from _xmem.values.table import Values

_COPIES = {"tensor", "as_tensor", "new_tensor"}
"""Those of them that may be given a tensor to copy, as `data`."""


class Factories:
    """Wraps them over a table of values, once there is one; `torch` is the job's."""

    _values: Values | None
    _assumed: Assumed | None

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._values, self._assumed = torch, None, None
        self._of_thread = threading.local()
        self._functions: list[Any] = []  # ours in the place of torch's own

    def keep(self, values: Values, assumed: Assumed) -> None:
        """From now on note what is made in the table `values`, with marks of `assumed` on what is
        drawn.
        """
        self._values, self._assumed = values, assumed

    def stand_in(self) -> None:
        """Let torch take ours for its own where it asks by identity."""
        # `with torch.device(...)` is told of the originals; it lists its functions once, and may
        # not have so far.
        constructors = importlib.import_module("torch.utils._device")._device_constructors()
        constructors.update(
            function.__wrapped__
            for function in self._functions
            if not function.__name__.endswith("_like")
        )
        # TorchScript knows its functions by identity; where it has listed them already, ours are
        # told to it.
        listed = self._torch.jit._builtins._builtin_table or {}
        for function in self._functions:
            if id(function.__wrapped__) in listed:
                listed[id(function)] = listed[id(function.__wrapped__)]

    def factory(self, make: Function, owner: object) -> Function:
        """Return what takes the place of a function that makes tensors of values that are on the
        host.
        """
        name, place_of_data = make.__name__, int(owner is self._torch.Tensor)

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Tensor:
            """Make the tensor, and note its values or how they are made."""
            out = make(*args, **kwargs)
            if self._values is None or getattr(self._of_thread, "unnoted", False):
                return out
            if not self._values.applies(out) or out.is_inference() or "out" in kwargs:
                return out
            data = kwargs.get("data", args[place_of_data] if len(args) > place_of_data else None)
            copies = name in _COPIES
            if copies and isinstance(data, self._torch.Tensor) and data.is_cuda:
                self._values.copied(out, data)
            elif self._values.small(out) or copies:
                kwargs.update(device="cpu", dtype=out.dtype)
                if "requires_grad" in kwargs:
                    kwargs["requires_grad"] = False
                kwargs.pop("layout", None)
                values = computed(
                    self._torch.as_tensor if copies and _in_array(data) else make, *args, **kwargs
                )
                if values is not None:
                    self._values.note(out, values)
            else:
                self._values.make(out, computed(self._recipe, name, out, *args, **kwargs))
            return out

        return self._named(made, owner)

    def first_gradients(self, make: Function, _owner: object) -> Function:
        """Around what makes the gradients that a backward pass begins with: ones, which nobody
        decides by.

        Were they noted, the host would compute with all that comes of them: four fifths of the time
        of a small pass.
        """

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            self._of_thread.unnoted = True
            try:
                return make(*args, **kwargs)
            finally:
                self._of_thread.unnoted = False

        return made

    def _recipe(self, name: str, out: Tensor, *args: Any, **kwargs: Any) -> Recipe | None:
        """Return what makes the values of a large tensor that a factory made; None where none is
        kept.
        """
        torch, kind = self._torch, name.replace("new_", "").replace("_like", "")
        if kind in ("zeros", "ones"):
            return lazy.Full(torch, int(kind == "ones"), out.dtype)
        if kind == "full":
            value = (
                kwargs["fill_value"] if "fill_value" in kwargs else args[1 + (name == "new_full")]
            )
            return None if isinstance(value, torch.Tensor) else lazy.Full(torch, value, out.dtype)
        if kind == "eye":
            return lazy.eye(torch, out.shape[1], out.dtype)
        if kind == "arange":
            bounds = [kwargs.get("start", 0), *args, kwargs.get("step", 1)]
            if len(args) > 1:
                bounds = [*args, kwargs.get("step", 1)]
            return lazy.arange(torch, bounds[0], bounds[2], out.dtype)
        return None

    def draw(self, make: Function, owner: object) -> Function:
        """Return what takes the place of a function that makes tensors of numbers that only a GPU
        draws.
        """
        name = make.__name__

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Tensor:
            out = make(*args, **kwargs)
            if self._values is not None and self._assumed is not None and self._values.keeps(out):
                every = None
                if name == "randperm":
                    every = self._torch.arange(out.numel(), dtype=out.dtype, device="cpu")
                self._values.note(
                    out, every, self._assumed.mark("numbers by %s, not drawn here" % name)
                )
            return out

        return self._named(made, owner)

    def _named(self, function: Any, owner: object) -> Function:
        """Give it the names that pickle finds it by; the original's are those of a class that holds
        only originals.
        """
        function.__module__, function.__qualname__ = "torch", function.__name__
        if owner is self._torch.Tensor:
            function.__qualname__ = "Tensor." + function.__name__
        else:
            self._functions.append(function)
        return function


def _in_array(data: object) -> bool:
    """Whether a tensor of this data can share its memory."""
    return hasattr(data, "__array_interface__") or type(data).__module__ == "torch"
