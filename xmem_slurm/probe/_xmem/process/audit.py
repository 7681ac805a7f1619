"""One audit hook for all that listens to Python: `id` is an event, and a hook of Python's is called
for each.

So events come by way of a filter in C where there is one (device/src/preload/preload.c), and else
by a hook of ours. Source of the events: the audit events table of Python's documentation. Who takes
one must neither raise nor be slow.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from _xmem.annotations import Function

LISTEN = "xmem.listen"
"""The event by which the filter is told whom to call, and for which events; it calls with this one,
too."""


class Listener:
    """Hears of all audit events of this process that somebody takes, and hands them on."""

    def __init__(self) -> None:
        self._takers: dict[str, tuple[Function, ...]] = {}
        self._filtered = False
        self._hook = self._heard  # the one object by which the filter knows this listener again
        self._announce()
        if not self._filtered:
            sys.addaudithook(self._hook)

    def take(self, events: Iterable[str], act: Function) -> None:
        """Call `act` with the arguments of each of these events."""
        for event in events:
            self._takers[event] = (*self._takers.get(event, ()), act)
        if self._filtered:
            self._announce()

    def _announce(self) -> None:
        sys.audit(LISTEN, self._hook, *self._takers)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == LISTEN:  # the filter is there; a hook of Python's hears of other listeners, too
            self._filtered = self._filtered or arguments[0] is self._hook
        for act in self._takers.get(event, ()):
            act(*arguments)
