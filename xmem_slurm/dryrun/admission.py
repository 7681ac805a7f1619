"""When may a dry run begin? A few at once for each user and on each machine, and one for each
submission.

Whoever's turn has not come stands in a line: a row of numbered places, each a name in Linux'
abstract socket namespace (unix(7)) that somebody listens on. The kernel gives a name to one
process, and takes it back when that ends, however it ends: there is no file to clear away, to own,
or to lock over a network file system. The first places of a line are those of dry runs that run;
whoever stands behind them moves up when a place before is free. Of that the kernel tells: who waits
is connected to who stands there, and sleeps until that connection ends. Whoever could not be in
time, as a dry run takes a while, goes at once; and so does whoever sees that the line moves too
slowly.

What this is not: a fence. A name can be taken by any process of the machine, and a user who holds
all of them has others wait as long as the site allows, and their jobs go as they were written.
Whoever has another network namespace or another SLURM_CONF, as a lab has, stands in other lines.
"""

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from typing import Protocol, TypeVar

from xmem_slurm.errors import Busy

CORES_PER_DRY_RUN = 4
"""A machine runs one dry run at a time for so many of its cores, where the site does not say."""
SHORTEST_SECONDS = 2.0
"""The import of torch alone takes a dry run as long: who stands behind ten has no turn before ten
such."""

_LOOK_SECONDS = 0.1
"""How soon is looked again where no connection can tell, as where more wait for one than it takes
(somaxconn)."""
_LONGEST_LINE = 10_000
_MOST_BYTES = 16
"""Of what is said to who waits: a number. Whoever has taken the name may say it, so it is never
shown."""
Tell = Callable[[str], None]
T = TypeVar("T")


class LineRules(Protocol):
    """How many run at once, and where: `site.schema.DryRuns`, and a site file as it stands
    (`site.places`).
    """

    @property
    def where(self) -> str:
        """Whether dry runs are `here`."""

    @property
    def per_user(self) -> int:
        """How many of one user's run at once."""

    @property
    def per_machine(self) -> int | None:
        """How many run at once on one machine; None for one for every few cores."""

    @property
    def queue_seconds(self) -> float:
        """How long a turn is waited for."""


@contextmanager
def turn(rules: LineRules, seconds: float | None, tell: Tell) -> Iterator[None]:
    """Wait for a dry run's turn, and hold its place; `tell` gets one line if that takes a while.

    `seconds` are how long it may take, None as long as the site has it. What runs elsewhere has no
    place in the queue of this machine.

    Raises:
        Busy: its turn has not come, or could not.
    """
    until = time.monotonic() + (rules.queue_seconds if seconds is None else seconds)
    per_machine = rules.per_machine or max(1, (os.cpu_count() or 1) // CORES_PER_DRY_RUN)
    with _Line(f"user {os.getuid()}", rules.per_user, "of yours") as yours:
        yours.wait(until, tell)
        if rules.where != "here":
            yield
            return
        with _Line("machine", per_machine, "on this machine") as everybodys:
            everybodys.wait(until, tell)
            yield


@contextmanager
def alone(
    name: str, seconds: float, tell: Tell, look_up: Callable[[], T | None]
) -> Iterator[T | None]:
    """Be the only one of this user who sizes what goes by this name; yields what another one has
    answered meanwhile, as `look_up` finds it.

    Raises:
        Busy: there was no end to that within `seconds`, or the other one had no turn, as this one
            would have none, or nothing was found in more time than is left.
    """
    began, waited = time.monotonic(), False
    until = began + seconds
    answer: T | None = None
    row = _Row(f"user {os.getuid()} {name}")
    with ExitStack() as held:
        while (place := row.take(0)) is None and answer is None:
            seconds_left = until - time.monotonic()
            if seconds_left <= 0:
                raise Busy(
                    "another submission of it is being dry-run, and had no answer within "
                    f"{seconds:.0f} s"
                )
            if not waited:
                tell(
                    "waiting for the answer to another submission of it; for "
                    f"{seconds_left:.0f} s at most"
                )
            waited = True
            had = row.wait_for([0], seconds_left)
            answer = look_up()
            if answer is None and had.isdecimal() and until - time.monotonic() <= int(had):
                raise Busy("another submission of it had no turn in that time")
        if place is not None:
            held.enter_context(place)
        if waited and answer is None:
            answer, took = look_up(), time.monotonic() - began
            if answer is None and took > seconds / 2:
                raise Busy(
                    f"another submission of it was being dry-run for {took:.0f} s, and had no "
                    "answer"
                )
        try:
            yield answer
        except Busy:
            if place is not None:
                _tell_who_waits(place, seconds)
            raise


def _tell_who_waits(place: socket.socket, seconds: float) -> None:
    """Tell who waits for a place, before it is free, for how long there was no turn."""
    place.setblocking(False)
    with suppress(OSError):  # nobody is left, or one has gone
        # so many stand in line at the most; whoever comes later is not waited for
        for _ in range(socket.SOMAXCONN):
            with place.accept()[0] as end:
                end.send(f"{seconds:.0f}".encode())


class _Row:
    """A row of places; who takes one has it as long as its socket is open."""

    def __init__(self, name: str) -> None:
        cluster = os.environ.get("SLURM_CONF", "")
        self.name = sha256(f"{cluster}\0{name}".encode(errors="surrogateescape")).hexdigest()[:32]

    def take(self, place: int) -> socket.socket | None:
        """Take this place, if it is free.

        Raises:
            Busy: there is none (on no kernel that we know of).
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(self._address(place))
            listener.listen(socket.SOMAXCONN)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise Busy(f"no queue of dry runs can be made: {error.strerror}") from error
        return listener

    def wait_for(self, places: Iterable[int], seconds: float) -> str:
        """Sleep until one of these places may be free, or so long; return what who left one said,
        if anything.
        """
        ends, poll = list[socket.socket](), select.poll()
        try:
            for place in places:
                end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                ends.append(end)
                try:
                    end.connect(self._address(place))
                    poll.register(end, 0)
                except OSError:
                    # Too many wait, or who is there does not listen, or is gone already.
                    seconds = min(seconds, _LOOK_SECONDS)
            poll.poll(seconds * 1000)
            return "".join(map(_receive, ends))
        finally:
            for end in ends:
                end.close()

    def _address(self, place: int) -> str:
        return f"\0xmem-slurm/{self.name}/{place}"


def _receive(end: socket.socket) -> str:
    with suppress(OSError):  # nothing, or no connection
        return end.recv(_MOST_BYTES).decode("ascii", errors="replace")
    return ""


class _Line:
    """A place in a line of which the first `at_once` run; it is given up at the end of a `with`.

    Raises:
        Busy: there is none.
    """

    def __init__(self, name: str, at_once: int, owner_words: str) -> None:
        self.row, self.at_once, self.owner_words = _Row(name), at_once, owner_words

    def __enter__(self) -> "_Line":
        for place in range(_LONGEST_LINE):
            held = self.row.take(place)
            if held is not None:
                self.place, self.held = place, held
                return self
        raise Busy(f"there is no end to the queue of dry runs {self.owner_words}")

    def __exit__(self, *_: object) -> None:
        self.held.close()

    def wait(self, until: float, tell: Tell) -> None:
        """Move up until it is our turn.

        Raises:
            Busy: it is not, at this time of the monotonic clock, or cannot be by then.
        """
        began, announced, first = time.monotonic(), False, self.place
        while self.place >= self.at_once:
            now = time.monotonic()
            seconds_left, waited = until - now, now - began
            rounds = (self.place - self.at_once) // self.at_once
            rounds_seen = (first - self.place) / self.at_once
            # If the next one takes as long as those that were seen, and that has taken `waited` so
            # far.
            by_pace = (until - began) / (1 + rounds / (rounds_seen + 1)) - waited
            spare = min(seconds_left - SHORTEST_SECONDS * rounds, by_pace)
            if spare <= 0:
                late = f"within the {seconds_left:.0f} s that are left"
                if seconds_left <= 0:
                    late = f"after {waited:.0f} s"
                raise Busy(f"{late} it is not its turn: {self._ahead()}")
            if not announced:
                tell(
                    f"waiting for its dry run's turn: {self._ahead()}; for {seconds_left:.0f} s "
                    "at most"
                )
                announced = True
            self.row.wait_for(self._before(), spare)
            while self.place >= self.at_once and self._move_up():
                pass

    def _before(self) -> range:
        """Return the places of which we take the first that is free."""
        if self.place == self.at_once:
            return range(self.at_once)
        return range(self.place - 1, self.place)

    def _move_up(self) -> bool:
        for place in self._before():
            held = self.row.take(place)
            if held is not None:
                self.held.close()
                self.held, self.place = held, place
                return True
        return False

    def _ahead(self) -> str:
        place = self.place - self.at_once + 1
        return (
            f"place {place} in the queue of dry runs {self.owner_words}, {self.at_once} at a time"
        )
