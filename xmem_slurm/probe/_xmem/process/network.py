"""Notes which host or address this Python asked for last: a dry run has no network, and what fails then says less."""

import os
import sys
import traceback

from _xmem.process import ends

_HERE = ("localhost", "127.0.0.1", "::1", os.uname().nodename)

_OF_WHAT_IS_NOT_THERE = (OSError, EOFError, ImportError)
"""What a script raises later, too, for what an earlier line of it did not get."""

_asked = []  # host or address, (code, line) of the script's innermost line that led there


def install(audit):
    """Note from here on what this listener hears."""
    audit.take(("urllib.Request",), _requested)
    audit.take(("socket.getaddrinfo",), _looked_up)


def _requested(address, *_rest):
    _note(str(address))


def _looked_up(host, *_rest):
    host = host.decode(errors="replace") if isinstance(host, bytes) else str(host or "")
    if host and host not in _HERE and not (_asked and host in _asked[0]):
        _note(host)


def _note(what):
    _asked[:] = [what, _line(traceback.walk_stack(sys._getframe(2)))]


def _line(frames):
    return next(((frame.f_code, line) for frame, line in frames if ends.is_users(frame)), None)


def forget():
    """What was asked for last could be had after all."""
    _asked.clear()


def missing():
    """Return in words what could not be reached, or nothing."""
    return "; it had asked for %s, and a dry run has no network" % _asked[0][:200] if _asked else ""


def may_explain(error):
    """Whether an exception may be for want of what was asked for: it, or what it was raised for, came of the same line.

    datasets asks for a counter of downloads at each load_dataset, of local files, too, and does well without it.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        places = ((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))
        if isinstance(error, _OF_WHAT_IS_NOT_THERE) or (_asked and _asked[1] in places):
            return True
        error = error.__cause__ or error.__context__
    return not seen
