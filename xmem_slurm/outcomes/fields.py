"""What may stand in a line that somebody's job has written? Words, names, sizes and times that
nobody stumbles over.

Each function returns the value as it is, or raises ValueError. A number of Python's JSON may also
be NaN, an infinity, or an integer that no float can hold.
"""

import re
from typing import Any

_WORD = re.compile(r"[A-Za-z0-9._+-]{0,100}")
_MOST_NAME = 1000
_LAST_SECOND = 1e11
"""Of the year 5138: what is later, no clock has said."""


def word(value: Any) -> str:
    """Return a word that can stand anywhere."""
    if not isinstance(value, str) or _WORD.fullmatch(value) is None:
        raise ValueError("no word")
    return value


def name(value: Any) -> str:
    """Return what a GPU or a request is called: one line of what can be shown; who writes it into a
    file quotes it.
    """
    if not isinstance(value, str) or len(value) > _MOST_NAME or not value.isprintable():
        raise ValueError("no name")
    return value


def whole(value: Any) -> int:
    """Return an integer of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("no integer")
    return value


def size(value: Any) -> int:
    """Return a count, or a size in bytes."""
    if whole(value) < 0:
        raise ValueError("no size")
    return int(value)


def number(value: Any, maximum: float = 2.0**63) -> float:
    """Return a share of something, which is neither negative nor more than `maximum`."""
    if type(value) not in (int, float) or not 0 <= value <= maximum:  # of NaN neither holds
        raise ValueError("no such number")
    return float(value)


def moment(value: Any) -> float:
    """Return a time in seconds since the epoch."""
    return number(value, _LAST_SECOND)
