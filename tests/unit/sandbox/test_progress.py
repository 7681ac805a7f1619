"""What counts against a dry run's budget: its CPU time and its own waiting, not what the machine
makes it wait for."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from xmem_slurm.sandbox import progress

TRAINS, SLEEPS, SHELL = 7, 8, 9


class Machine:
    """Stands for /proc and the clock: what each process has used so far, and what it waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.dead = 0.0
        self.ran: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.states: dict[int, str] = {}
        self.spawns: set[int] = set()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress, "_of_the_dead", lambda: self.dead)
        monkeypatch.setattr(progress, "_cpu_seconds", lambda n: self.ran[n])
        monkeypatch.setattr(progress, "_threads", lambda n: iter([self.thread(n)]))
        monkeypatch.setattr(progress, "_is_on_files", lambda _, thread: thread not in self.spawns)

    def thread(self, number: int) -> progress.Thread:
        state = self.states.get(number, "S")
        return progress.Thread(number, state, self.ran[number], self.waited.get(number, 0.0))


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
    ids=[
        "busy",
        "on two CPUs",
        "asleep",
        "one of two",
        "starved",
        "starved in part",
        "disk",
        "another's disk",
    ],
)
def test_what_ten_seconds_count(
    machine: Machine,
    ran: Mapping[int, float],
    waited: Mapping[int, float],
    states: Mapping[int, str],
    spent: float,
) -> None:
    found = progress.Progress()
    machine.now = 10.0
    machine.ran = dict(ran)
    machine.waited = dict(waited)
    machine.states = dict(states)
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


def looked(machine: Machine, *moments: Mapping[str, object], **settings: bool) -> progress.Progress:
    """Look at the one process TRAINS at each of these moments; what they do not name is as it was
    before."""
    found = progress.Progress(**settings)
    machine.ran = {TRAINS: 0.0}
    for moment in moments:
        for name, value in moment.items():
            setattr(machine, name, value if name in {"now", "dead"} else {TRAINS: value})
        found.look([TRAINS])
    return found


def test_a_wait_is_in_the_books_when_it_ends(machine: Machine) -> None:
    """Until then it is neither idle nor, as the next look sees more than the time between,
    forgotten."""
    waits = {"now": 5.0, "ran": 1.0, "states": "R"}
    assert looked(machine, waits).spent_seconds == 1.0
    assert looked(machine, waits | {"now": 105.0}).spent_seconds == 1.0
    ran = {"now": 206.0, "ran": 2.0, "waited": 204.0, "states": "S"}
    assert looked(machine, waits | {"now": 105.0}, ran).spent_seconds == pytest.approx(2.0)
    slept = {"now": 206.0, "ran": 2.0, "waited": 104.0, "states": "S"}
    assert looked(machine, waits | {"now": 105.0}, slept).spent_seconds == pytest.approx(102.0)


def test_what_woke_during_a_look_was_not_idle(machine: Machine) -> None:
    found = looked(machine, {"now": 5.0, "ran": 4.0}, {"now": 6.0, "ran": 5.5, "waited": 0.5})
    assert found.spent_seconds == pytest.approx(5.5)


def test_who_ends_takes_its_waits_along_in_favor_of_the_dry_run(machine: Machine) -> None:
    """A process that is listed and then gone was ready in between, too."""
    found = looked(machine, {"now": 5.0, "states": "R"})
    machine.now, machine.dead = 10.0, 1.0
    found.look([])
    assert found.spent_seconds == 1.0
    machine.now = 15.0
    found.look([])
    assert found.spent_seconds == 6.0

    def gone(number: int) -> float:
        raise ProcessLookupError(number)

    machine.now = 20.0
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "_cpu_seconds", gone)
        found.look([SLEEPS])
    assert found.spent_seconds == 6.0


@pytest.mark.parametrize(("waited", "spent"), [(0.0, 10.0), (0.9, 1.1), (0.4, 5.6)])
def test_programs_that_no_look_saw_waited_as_the_shell_did(
    machine: Machine, waited: float, spent: float
) -> None:
    """A second of theirs, a tenth of a second of the shell's: of ten."""
    found = progress.Progress()
    machine.now = 10.0
    machine.dead = 1.0
    machine.ran = {SHELL: 0.1}
    machine.waited = {SHELL: waited}
    found.look([SHELL])
    assert found.spent_seconds == pytest.approx(spent)


def test_a_wait_for_the_own_child_is_none_for_a_disk(machine: Machine) -> None:
    machine.spawns = {TRAINS}
    assert looked(machine, {"now": 10.0, "states": "D"}).spent_seconds == 10.0


def test_a_disk_that_does_not_answer_is_waited_for_as_long_as_one_may_take(
    machine: Machine,
) -> None:
    waits = [{"now": float(now), "states": "D"} for now in range(40)]
    assert looked(machine, *waits).spent_seconds == 39.0 - progress.DISK_SECONDS + 1.0
    answers = [each | {"ran": each["now"] / 1000} for each in waits]
    assert looked(machine, *answers).spent_seconds == pytest.approx(0.039)


def test_what_is_made_for_it_meanwhile_is_not_its_time(machine: Machine) -> None:
    asked = progress.Progress()
    machine.ran = {SLEEPS: 0.0}
    for now, ran, held_up in ((5.0, 0.0, False), (50.0, 1.0, True), (53.0, 2.0, False)):
        machine.now, machine.ran = now, {SLEEPS: ran}
        asked.look([SLEEPS], held_up=held_up)
    assert asked.spent_seconds == 5.0 + 1.0 + 3.0


def test_disks_count_where_they_are_asked_about(machine: Machine) -> None:
    assert looked(machine, {"now": 10.0, "states": "D"}, disks_count=True).idle_seconds == 10.0


def test_a_real_parent_that_waits_for_a_vfork_is_known_from_one_that_waits_for_a_disk(
    tmp_path: Path,
) -> None:
    """The C library's posix_spawn is one; its child waits for who writes to the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    parent = os.fork()
    if parent == 0:
        actions = [(os.POSIX_SPAWN_OPEN, 0, str(pipe), os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
        os._exit(0)
    try:
        until = time.monotonic() + 60.0
        while (state := next(progress._threads(parent)).state) != "D" and time.monotonic() < until:
            time.sleep(0.01)
        on_files = progress._is_on_files(parent, parent)
    finally:
        pipe.open("w").close()
        os.waitpid(parent, 0)
    assert (on_files, state) == (False, "D")
    assert progress._is_on_files(os.getpid(), os.getpid())  # it reads that itself


@contextmanager
def child(seconds: float) -> Iterator[int]:
    """A process that works for so many CPU seconds, and is then there until it has been looked
    at."""
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
