"""Which files has a process open that it was handed by whoever started it? A new life begins
without them.
"""

import os
from contextlib import suppress

_OPEN = "/proc/self/fd"


def close_all_but(*kept: int) -> None:
    """Close all but the standard ones and these.

    By the kernel's own list: the limit says nothing of what was opened before it was lowered, and a
    folder's descriptor would be a way out of the sandbox.
    """
    for number in map(int, os.listdir(_OPEN)):  # noqa: PTH208 - names are numbers
        if number > 2 and number not in kept:
            with suppress(OSError):  # that of the list itself
                os.close(number)
