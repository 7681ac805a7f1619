"""Functions of torch that make tensors: their C++ is below the key of the other rules, so they are wrapped by name."""

import functools
import importlib

from _xmem.values import lazy
from _xmem.values.table import computed

_FACTORIES = """
    tensor as_tensor zeros ones full arange linspace logspace eye triu_indices tril_indices
    zeros_like ones_like full_like
"""
_METHODS = "new_zeros new_ones new_full new_tensor"
"""What makes tensors of values that are on the host."""
_DRAWS = "randint randperm randint_like"
"""What makes tensors of numbers that only a GPU draws."""
_CONSTRUCTORS = """
    tensor as_tensor zeros ones full arange linspace logspace eye triu_indices tril_indices randint randperm
"""
"""Those of them that a default device applies to."""
_COPIES = {"tensor", "as_tensor", "new_tensor"}
"""Those of them that may be given a tensor to copy, as `data`."""


class Factories:
    """Wraps them over the table `values`; `assumed` gives the marks of what is drawn."""

    def __init__(self, torch, values, assumed):
        self._torch, self._values, self._assumed = torch, values, assumed

    def register(self):
        """Put ours in their places."""
        for place, names, wrapped in (
            (self._torch, _FACTORIES, self._factory),
            (self._torch.Tensor, _METHODS, self._factory),
            (self._torch, _DRAWS, self._draw),
        ):
            for name in names.split():
                setattr(place, name, wrapped(place, name))
        # `with torch.device(...)` is told of the originals; it lists its functions once, and may not have so far.
        constructors = importlib.import_module("torch.utils._device")._device_constructors()
        constructors.update(getattr(self._torch, name).__wrapped__ for name in _CONSTRUCTORS.split())
        # TorchScript knows its functions by identity; where it has listed them already, ours are told to it.
        listed = self._torch.jit._builtins._builtin_table or {}
        for name in (_FACTORIES + _DRAWS).split():
            made = getattr(self._torch, name)
            if id(made.__wrapped__) in listed:
                listed[id(made)] = listed[id(made.__wrapped__)]

    def _factory(self, place, name):
        make, place_of_data = getattr(place, name), int(place is self._torch.Tensor)

        @functools.wraps(make)
        def made(*args, **kwargs):
            out = make(*args, **kwargs)
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
                values = computed(self._torch.as_tensor if copies and _in_array(data) else make, *args, **kwargs)
                if values is not None:
                    self._values.note(out, values)
            else:
                self._values.make(out, computed(self._recipe, name, out, *args, **kwargs))
            return out

        return self._named(made, place, name)

    def _recipe(self, name, out, *args, **kwargs):
        """Return what makes the values of a large tensor that a factory made; None where none is kept."""
        torch, kind = self._torch, name.replace("new_", "").replace("_like", "")
        if kind in ("zeros", "ones"):
            return lazy.Full(torch, int(kind == "ones"), out.dtype)
        if kind == "full":
            value = kwargs["fill_value"] if "fill_value" in kwargs else args[1 + (name == "new_full")]
            return None if isinstance(value, torch.Tensor) else lazy.Full(torch, value, out.dtype)
        if kind == "eye":
            return lazy.eye(torch, out.shape[1], out.dtype)
        if kind == "arange":
            given = [kwargs.get("start", 0), *args, kwargs.get("step", 1)]
            if len(args) > 1:
                given = [*args, kwargs.get("step", 1)]
            return lazy.arange(torch, given[0], given[2], out.dtype)
        return None

    def _draw(self, place, name):
        make = getattr(place, name)

        @functools.wraps(make)
        def made(*args, **kwargs):
            out = make(*args, **kwargs)
            if self._values.keeps(out):
                every = self._torch.arange(out.numel(), dtype=out.dtype, device="cpu") if name == "randperm" else None
                self._values.note(out, every, self._assumed.mark("numbers by %s, not drawn here" % name))
            return out

        return self._named(made, place, name)

    def _named(self, made, place, name):
        """Give it the names that pickle finds it by; the original's are those of a class that holds only originals."""
        made.__module__, made.__name__ = "torch", name
        made.__qualname__ = name if place is self._torch else "Tensor." + name
        return made


def _in_array(data):
    """Whether a tensor of this data can share its memory."""
    return hasattr(data, "__array_interface__") or type(data).__module__ == "torch"
