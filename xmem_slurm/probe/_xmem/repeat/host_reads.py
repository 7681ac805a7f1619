"""Is a number that a call is given on the host read there?

Note [Numbers not read]: a sampler gives its model the time of each step, as a tensor of one number
on the host, and no two steps have the same one. What a call asks the allocator for hangs on such a
number only where the host reads it: all that a GPU does by it has the shapes that it has anyway. So
while a call is recorded, whatever reads a tensor on the host is noted: torch's own operators for
it, by way of which `if`, `int` and a slice read, too, and what gives Python its numbers past those.
Of a module of which so many recorded calls (`UNREAD`) have read none, they are of a call's kind no
more. What each call did has to be the same all the same (`known.TIMES`), and those that are made
now and then (`checks`) are watched, too: once a number is read, they count for good.

Larger tensors on the host are left out: some operators read lengths in C++, and tell nobody. Nor
does who reads a number's memory by its address.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from _xmem.annotations import Function

UNREAD = 4
"""So many recorded calls of a module, with nothing read on the host."""
_OPERATORS = (
    "_local_scalar_dense.default",
    "equal.default",
    "allclose.default",
    "nonzero.default",
    "repeat_interleave.Tensor",
)
"""None of them is differentiated."""
_METHODS = ("tolist", "numpy", "__array__", "__dlpack__")
"""Of a tensor: what gives its numbers past torch's operators."""


class HostReads:
    """How often something on the host was read while a call was watched."""

    def __init__(self) -> None:
        self.count = 0

    def _noting(self, read: Function) -> Function:
        @functools.wraps(read)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return read(*args, **kwargs)

        return noted

    @contextlib.contextmanager
    def watched(self, torch: ModuleType) -> Iterator[None]:
        """Within this, reads are counted."""
        own = {name: vars(torch.Tensor).get(name) for name in _METHODS}
        library = torch.library.Library("aten", "IMPL")
        try:
            for name in _OPERATORS:
                operator = functools.reduce(getattr, name.split("."), torch.ops.aten)
                library.impl(operator, self._operator(torch, operator), "AutogradCPU")
            for name in _METHODS:
                setattr(torch.Tensor, name, self._noting(getattr(torch.Tensor, name)))
            yield
        finally:
            library._destroy()
            for name, method in own.items():
                if method is not None:
                    setattr(torch.Tensor, name, method)
                elif name in vars(torch.Tensor):
                    delattr(torch.Tensor, name)

    def _operator(self, torch: ModuleType, operator: Any) -> Function:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*args, **kwargs)

        return called
