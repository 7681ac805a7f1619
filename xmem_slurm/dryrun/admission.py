"""When may a dry run begin? A few at once for each user and on each machine, and one for each submission.

Whoever's turn has not come stands in a line: a row of numbered places, each a name in Linux' abstract socket
namespace (unix(7)) that somebody has bound. The kernel gives a name to one process, and takes it back when that ends,
however it ends: there is no file to clear away, to own, or to lock over a network file system. The first places of a
line are those of dry runs that run; whoever stands behind them moves up when the place before is free.

What this is not: a fence. A name can be taken by any process of the machine, and a user who holds all of them has
others wait as long as the site allows, and their jobs go as they were written. Whoever has another network namespace
or another SLURM_CONF, as a lab has, stands in other lines.
"""

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from xmem_slurm.errors import Busy

if TYPE_CHECKING:
    from xmem_slurm.site.schema import DryRuns

CORES_PER_DRY_RUN = 4
"""A machine runs one dry run at a time for so many of its cores, where the site does not say."""

_LOOK_SECONDS = 0.1
_LONGEST_LINE = 10_000
Tell = Callable[[str], None]
T = TypeVar("T")


@contextmanager
def turn(rules: "DryRuns", seconds: float | None, tell: Tell) -> Iterator[None]:
    """Wait for a dry run's turn, and hold its place; `tell` gets one line if that takes a while.

    `seconds` are how long it may take, None as long as the site has it. What runs elsewhere has no place in the line of
    this machine.

    Raises:
        Busy: its turn has not come.
    """
    until = time.monotonic() + (rules.queue_seconds if seconds is None else seconds)
    here = rules.per_machine or max(1, (os.cpu_count() or 1) // CORES_PER_DRY_RUN)
    with _Line(f"user {os.getuid()}", rules.per_user, "of yours") as yours:
        yours.wait(until, tell)
        if rules.where != "here":
            yield
            return
        with _Line("machine", here, "on this machine") as everybodys:
            everybodys.wait(until, tell)
            yield


@contextmanager
def alone(name: str, seconds: float, tell: Tell, found: Callable[[], T | None]) -> Iterator[T | None]:
    """Be the only one of this user who sizes what goes by this name; yields what another one has `found` meanwhile.

    Raises:
        Busy: there was no end to that within `seconds`.
    """
    with _Line(f"user {os.getuid()} {name}", 1, "of this very submission") as line:
        waited = line.place > 0
        until, known = time.monotonic() + seconds, None
        for _ in line.moves(until, tell):
            known = found()
            if known is not None:
                break
        yield found() if waited and known is None else known


class _Line:
    """A place in a line of which the first `most` run; it is given up at the end of a `with`.

    Raises:
        Busy: there is none (on no kernel that we know of).
    """

    def __init__(self, name: str, most: int, whose: str) -> None:
        cluster = os.environ.get("SLURM_CONF", "")
        self.name = sha256(f"{cluster}\0{name}".encode(errors="surrogateescape")).hexdigest()[:32]
        self.most, self.whose = most, whose
        self.place, self.held = -1, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> "_Line":
        for place in range(_LONGEST_LINE):
            if self._take(place):
                return self
        raise Busy(f"there is no end to the line of dry runs {self.whose}")

    def __exit__(self, *_: object) -> None:
        self.held.close()

    def wait(self, until: float, tell: Tell) -> None:
        """Move up until it is our turn.

        Raises:
            Busy: it is not, at this time of the monotonic clock.
        """
        for _ in self.moves(until, tell):
            pass

    def moves(self, until: float, tell: Tell) -> Iterator[None]:
        """The same, with a look at other things each time that it is not yet our turn."""
        began, waiting_told = time.monotonic(), False
        while self.place >= self.most:
            left = until - time.monotonic()
            if left <= 0:
                waited = time.monotonic() - began
                raise Busy(f"after {waited:.0f} s it was not its turn: {self._ahead()}")
            if not waiting_told:
                tell(f"waiting for its dry run's turn: {self._ahead()}; for {left:.0f} s at most")
                waiting_told = True
            time.sleep(min(_LOOK_SECONDS, left))
            while self.place >= self.most and self._take(self.place - 1):
                pass
            yield

    def _ahead(self) -> str:
        place = self.place - self.most + 1
        return f"place {place} in the line of dry runs {self.whose}, of which {self.most} run at once"

    def _take(self, place: int) -> bool:
        """Take this place, and leave the one that we had, if it is free."""
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            taken.bind(f"\0xmem-slurm/{self.name}/{place}")
        except OSError as error:
            taken.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise Busy(f"there can be no line of dry runs: {error.strerror}") from error
        self.held.close()
        self.held, self.place = taken, place
        return True
