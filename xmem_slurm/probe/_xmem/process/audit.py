"""One audit hook for all that listens to Python: each event costs a call of every hook there is, and `id` is an event.

Source of the events: the audit events table of Python's documentation. Who takes one must neither raise nor be slow.
"""

import sys

_takers = {}


def take(events, act):
    """Call `act` with the arguments of each of these events, from here on."""
    if not _takers:
        sys.addaudithook(_heard)
    for event in events:
        _takers[event] = (*_takers.get(event, ()), act)


def _heard(event, arguments):
    for act in _takers.get(event, ()):
        act(*arguments)
