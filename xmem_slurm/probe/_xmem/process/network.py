"""Notes which host or address this Python asked for last: a dry run has no network, and what fails then says less.

Source of the events: the audit events table of Python's documentation.
"""

import os
import sys

_HERE = ("localhost", "127.0.0.1", "::1", os.uname().nodename)

_asked = []


def install():
    """Note from here on."""
    sys.addaudithook(_hook)


def _hook(event, args):
    """Take an audit event; it must neither raise nor be slow, as Python raises them all the time."""
    if event == "urllib.Request":
        _asked[:] = [str(args[0])]
    elif event == "socket.getaddrinfo" and args[0]:
        host = args[0].decode(errors="replace") if isinstance(args[0], bytes) else str(args[0])
        if host not in _HERE and not (_asked and host in _asked[0]):
            _asked[:] = [host]


def forget():
    """What was asked for last could be had after all."""
    _asked.clear()


def missing():
    """Return in words what could not be reached, or nothing."""
    return "; it had asked for %s, and a dry run has no network" % _asked[0][:200] if _asked else ""
