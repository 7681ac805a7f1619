"""torch._dynamo, by which torch compiles, is imported where something is compiled, and not before.

Note [Dynamo put off]: torch imports it as soon as an optimizer is made, which takes as long as
`import torch` itself: to say that what makes one is not to be compiled, and that a graph ends where
a step begins. While nobody else has imported it nothing is compiled, and all that comes of this is
that the functions in question are called. So their wrappers have code that does no more, and get
their own back once the script, or what it imports, has torch._dynamo.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from _xmem import imports

if TYPE_CHECKING:
    from types import CodeType, FunctionType, ModuleType

    from _xmem.annotations import Function


class Dynamo:
    """What torch does for its sake, and leaves while it is not there."""

    def __init__(self) -> None:
        self._is_there = False
        self._put_off: list[tuple[FunctionType, CodeType]] = []  # a function, and its own code
        imports.after("torch._dynamo", self._came)

    def disabled(self, disable: Function, _compile: ModuleType) -> Function:
        """Around what marks a function as not to be compiled."""
        return self._marking(disable, _CALL)

    def stepping(self, without_gradients: Function, _optimizer: ModuleType) -> Function:
        """Around what has a step of an optimizer made without gradients, and ends a graph there."""
        return self._marking(without_gradients, _CALL_WITHOUT_GRADIENTS)

    def _marking(self, mark: Function, plain: CodeType) -> Function:
        """Return what gives a function that `mark` wraps the code `plain` until it is there."""

        @functools.wraps(mark)
        def marked(*args: Any, **kwargs: Any) -> Any:
            return self._until_there(mark(*args, **kwargs), plain)

        return marked

    def _until_there(self, function: Any, plain: CodeType) -> Any:
        """Have a function do as `plain` says, which is code for the same variables around it; one
        of another form, as another release may have, stays as it is.
        """
        code = getattr(function, "__code__", None)  # the partial of a decorator has none
        if code is not None and code.co_freevars == plain.co_freevars and not self._is_there:
            self._put_off.append((function, code))
            function.__code__ = plain
        return function

    def _came(self, _dynamo: ModuleType) -> None:
        self._is_there = True
        for function, code in self._put_off:
            function.__code__ = code
        self._put_off.clear()


def _plain_call(fn: Function, recursive: bool) -> CodeType:
    """Return code in the place of `inner` (torch/_compile.py, torch 2.11 to 2.14)."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        _ = recursive  # one of the variables that it has around it
        return fn(*args, **kwargs)

    return inner.__code__


def _plain_step(func: Function) -> CodeType:
    """Return code in the place of `_use_grad` (torch/optim/optimizer.py, torch 2.11 to 2.14), among
    whose globals it runs.
    """

    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(args[0].defaults["differentiable"]):  # type: ignore[name-defined] # noqa: F821
            return func(*args, **kwargs)

    return _use_grad.__code__


_CALL = _plain_call(lambda: None, recursive=True)
_CALL_WITHOUT_GRADIENTS = _plain_step(lambda: None)
