"""Ends a process at its first collective, where no more is wanted of it than that it starts
(XMEM_STARTS): a rank that comes so far has found its GPU, and meets the others.

DDP calls its collectives past Python: there it is the first backward pass.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from _xmem.annotations import Function


class FirstCollective:
    """The first one of this process, which `leave` ends if it `is_wanted`; `level` says how many
    bytes are allocated on its GPU.
    """

    def __init__(
        self, is_wanted: bool, leave: Callable[[], None], level: Callable[[], int]
    ) -> None:
        self._is_wanted, self._leave, self._level = is_wanted, leave, level

    def around(self, collective: Function, _owner: object) -> Function:
        """Around a method of ProcessGroup: one without anything on the GPU, as a barrier before the
        script has chosen its GPU, shows little.
        """
        if not self._is_wanted:
            return collective

        @functools.wraps(collective)
        def noted(*args: Any, **kwargs: Any) -> Any:
            work = collective(*args, **kwargs)
            self.reached()
            return work

        return noted

    def objects(self, exchange: Function, _owner: object) -> Function:
        """In place of an exchange of objects: others wait for this rank, and none of them runs."""
        if not self._is_wanted:
            return exchange

        @functools.wraps(exchange)
        def noted(*_args: Any, **_kwargs: Any) -> Any:
            self._leave()

        return noted

    def reached(self) -> None:
        """One was called, or a backward pass begins."""
        if self._is_wanted and self._level():
            self._leave()
