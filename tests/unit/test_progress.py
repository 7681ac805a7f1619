"""What counts against a dry run's budget: its CPU time and its own waiting, not what the machine makes it wait for."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from xmem_slurm.sandbox import progress

TRAINS, SLEEPS = 7, 8


class Machine:
    """Stands for /proc and the clock: what each process has used so far, and which one waits for a disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.dead = 0.0
        self.ran: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.states: dict[int, str] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress, "_of_the_dead", lambda: self.dead)
        monkeypatch.setattr(progress, "_state", lambda n: (self.states.get(n, "S"), self.ran[n]))
        monkeypatch.setattr(progress, "_busy", lambda n: {n: int((self.ran[n] + self.waited.get(n, 0.0)) * 1e9)})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("ran", "waited", "states", "spent"),
    [
        ({TRAINS: 10.0}, {}, {}, 10.0),
        ({TRAINS: 20.0}, {}, {}, 20.0),
        ({SLEEPS: 0.0}, {}, {}, 10.0),
        ({TRAINS: 4.0, SLEEPS: 0.0}, {}, {}, 10.0),
        ({TRAINS: 2.0}, {TRAINS: 8.0}, {}, 2.0),
        ({TRAINS: 1.0}, {TRAINS: 4.0}, {}, 6.0),
        ({TRAINS: 1.0}, {}, {TRAINS: "D"}, 1.0),
        ({SLEEPS: 0.0}, {}, {TRAINS: "D"}, 10.0),
    ],
    ids=["busy", "on two CPUs", "asleep", "one of two", "starved", "starved in part", "disk", "another's disk"],
)
def test_what_ten_seconds_count(
    machine: Machine, ran: Mapping[int, float], waited: Mapping[int, float], states: Mapping[int, str], spent: float
) -> None:
    found = progress.Progress()
    machine.now, machine.ran, machine.waited, machine.states = 10.0, dict(ran), dict(waited), dict(states)
    found.look(ran)
    assert found.spent_seconds == pytest.approx(spent)
    assert found.cpu_seconds == pytest.approx(sum(ran.values()))


def test_the_dead_count_as_they_did_alive(machine: Machine) -> None:
    found = progress.Progress()
    machine.now, machine.ran = 5.0, {TRAINS: 5.0}
    found.look([TRAINS])
    machine.now, machine.dead = 6.0, 6.0
    found.look([])
    assert (found.cpu_seconds, found.spent_seconds) == (6.0, 6.0)


@contextmanager
def child(seconds: float) -> Iterator[int]:
    """A process that works for so many CPU seconds, and is then there until it has been looked at."""
    worked, done = os.pipe()
    number = os.fork()
    if number == 0:
        while time.process_time() < seconds:
            pass
        os.write(done, b"!")
        time.sleep(600)
    os.read(worked, 1)
    try:
        yield number
    finally:
        os.close(worked)
        os.close(done)


def test_a_real_process_is_seen_alive_and_dead() -> None:
    found = progress.Progress()
    before = progress._of_the_dead()
    with child(0.2) as number:
        found.look([number])
        alive = found.cpu_seconds - before
        os.kill(number, 9)
        os.waitpid(number, 0)
    found.look([number])
    assert alive > 0.185
    assert alive - 0.02 <= found.cpu_seconds - before < alive + 0.5
