"""One audit hook for all that listens to Python: each event costs a call of every hook there is, and `id` is an event.

Source of the events: the audit events table of Python's documentation. Who takes one must neither raise nor be slow.
"""

import sys


def identity(thing):
    """Return what no two objects have that are there at once, as `id` does, without an event."""
    return object.__hash__(thing)


class Listener:
    """Hears all audit events of this process from now on, and hands on those that somebody takes."""

    def __init__(self):
        self._takers = {}
        sys.addaudithook(self._heard)

    def take(self, events, act):
        """Call `act` with the arguments of each of these events."""
        for event in events:
            self._takers[event] = (*self._takers.get(event, ()), act)

    def _heard(self, event, arguments):
        for act in self._takers.get(event, ()):
            act(*arguments)
