"""What does a dry run say of where it is, while somebody waits for it? The probe's words, through a
socket.

Nothing is decided by them. The job could write there, too: what is shown are a few plain letters,
or nothing.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

SOCKET = "says"
_SAID = re.compile(r"(\d{1,6})\|([A-Za-z0-9 _:,-]{1,60})")
"""Seconds of the dry run's budget, and words."""


class Heard:
    """The last thing that was said, and what dry runs have taken so far, as far as that was
    said.
    """

    def __init__(self) -> None:
        self._words = "starting"
        self._seconds = self._before = 0
        self._ear: socket.socket | None = None

    @property
    def seconds(self) -> int:
        """The seconds of a budget that were said to be spent, of all dry runs since somebody
        waits.
        """
        return self._before + self._seconds

    def note(self, words: str) -> None:
        """Take this for it."""
        self._words = words

    def words(self) -> str:
        """Return it as it is now; another thread may ask."""
        with suppress(OSError, ValueError, AttributeError):
            while self._ear is not None:
                message = self._ear.recv(100).decode("utf-8", "replace")
                match = _SAID.fullmatch(message)
                if match is not None:
                    self._seconds, self._words = max(self._seconds, int(match[1])), match[2]
        return self._words

    @contextmanager
    def listening(self, folder: Path) -> Iterator[None]:
        """Listen at the socket in `folder`, meanwhile."""
        place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ear:
            try:
                # the path of a socket has 107 bytes at most
                ear.bind(f"/proc/self/fd/{place}/{SOCKET}")
            finally:
                os.close(place)
            self._words, self._ear = "starting", ear
            self._before, self._seconds = self.seconds, 0
            try:
                yield
            finally:
                self._ear, self._words = None, "replaying what it asked for"


_waiting: ContextVar[Heard | None] = ContextVar("waiting", default=None)


@contextmanager
def somebody_waits() -> Iterator[Heard]:
    """Have the dry runs that are made meanwhile tell where they are."""
    heard = Heard()
    before = _waiting.set(heard)
    try:
        yield heard
    finally:
        _waiting.reset(before)


def elsewhere(words: str) -> None:
    """Say so as long as nothing is heard: the dry runs that somebody waits for are other processes'
    own.
    """
    heard = _waiting.get()
    if heard is not None:
        heard.note(words)


@contextmanager
def told(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables by which a dry run in `folder` knows that somebody listens; none where
    nobody does.
    """
    heard = _waiting.get()
    if heard is None:
        yield {}
        return
    with heard.listening(folder):
        yield {"XMEM_SAYS": SOCKET}
