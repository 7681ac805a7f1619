"""What ranks that are run at once tell each other: each message is a file in a folder of the dry
run.

Which ranks those are stands in XMEM_RUN_RANKS ("0,1,3/4": ranks 0, 1 and 3 of 4). No kernel runs,
so only what decides what a rank does next is worth telling: Python objects, and small tensors whose
values are known.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from _xmem.process.budget import TimeLeft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOOK_SECONDS = 0.01
"""Between two looks for a message that is not there yet."""


class NobodyTellsError(RuntimeError):
    """The rank that should have sent something was not run, has ended, or the dry run's time is
    up.
    """


class Mail:
    """The messages of one process; `leave` ends it as one that is steady (the recorder's way)."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        # how many messages went through each channel from here, or were taken from it
        self._counts: dict[tuple[object, ...], int] = {}

    def post(self, channel: str, sender: int, receiver: int, content: bytes) -> None:
        """Leave `content` (bytes) for a rank; messages of a channel between two ranks are taken in
        their order.
        """
        _write(self._next(channel, sender, receiver), content)

    def take(self, channel: str, sender: int, receiver: int) -> bytes:
        """Wait for the next message of `sender` and return it. If it has ended, and this rank was
        steady, so does it.

        Raises:
            NobodyTellsError: it will not come.
        """
        path, ended = self._next(channel, sender, receiver), _path("ended-%d" % sender)
        budget = TimeLeft(os.environ)
        while not os.path.exists(path):
            gone = os.path.exists(ended) and not os.path.exists(path)
            if gone and os.path.exists(_path("steady-%d" % receiver)):
                self._leave()
            if gone or budget.seconds_left() <= 0:
                raise NobodyTellsError(
                    "rank %d of the dry run ended before it sent what rank %d waits for"
                    % (sender, receiver)
                )
            time.sleep(LOOK_SECONDS)
        with open(path, "rb") as file:
            return file.read()

    def _next(self, *channel: object) -> str:
        number = self._counts[channel] = self._counts.get(channel, 0) + 1
        return _path("-".join([quote(str(part), safe="") for part in channel] + [str(number)]))


def running(world_size: int) -> set[int]:
    """Return the ranks of a world of this size that are run at once, or nothing where only this one
    is.
    """
    ranks, _, size = os.environ.get("XMEM_RUN_RANKS", "").partition("/")
    return {int(rank) for rank in ranks.split(",")} if size == str(world_size) else set()


def say(state: str, rank: int) -> None:
    """Let the other ranks know that this one is "steady" or has "ended"."""
    _write(_path("%s-%d" % (state, rank)), b"")


def all_said(ranks: Iterable[int]) -> bool:
    """Whether each of these ranks is steady or has ended."""
    return all(
        any(os.path.exists(_path("%s-%d" % (state, rank))) for state in ("steady", "ended"))
        for rank in ranks
    )


def _path(name: str) -> str:
    """Return a file's place; each launcher of the script has a folder of its own, as it starts its
    ranks anew.
    """
    return os.path.join(
        os.environ["XMEM_TRACE_DIR"], "ranks", os.environ.get("XMEM_LAUNCHER", ""), name
    )


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = "%s.%d.part" % (path, os.getpid())
    with open(part, "wb") as file:
        file.write(content)
    os.replace(part, path)
