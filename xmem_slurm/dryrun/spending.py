"""The clock by which dry runs share a budget: it shows what those of this process have spent so far.

What a dry run spends is told by its sandbox (`progress`), or by the node that it ran on (`cpu_node`).
"""

import time
from contextvars import ContextVar
from typing import NamedTuple

_spent: ContextVar[float] = ContextVar("spent", default=0.0)


class Moment(NamedTuple):
    """What the clock shows: seconds of budget, and of the clock on the wall beside it."""

    spent: float
    wall: float

    def since(self, earlier: "Moment") -> "Moment":
        """Return what has passed."""
        return Moment(self.spent - earlier.spent, self.wall - earlier.wall)


def now() -> Moment:
    """Read the clock."""
    return Moment(_spent.get(), time.monotonic())


def add(seconds: float) -> None:
    """Let it go on by what a dry run has spent."""
    _spent.set(_spent.get() + seconds)
