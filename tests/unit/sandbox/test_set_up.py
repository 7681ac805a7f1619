"""How long may the sandbox's set-up take? As long as the machine keeps it waiting for a core, up to
a far end."""

import json
import os
import time
from collections.abc import Iterable, Iterator

import pytest

from xmem_slurm.errors import SandboxError
from xmem_slurm.sandbox import progress, sandbox

FIRST = 4711


class SetUp:
    """Stands for the processes of a set-up, the clock on the wall and what is known of their
    progress."""

    def __init__(self, keeper: int, status: int) -> None:
        self.keeper, self.status = keeper, status
        self.now = self.idle_seconds = 0.0
        self.seconds_a_look = self.idle_a_look = 0.0
        self.ready_at_look: int | None = None
        self.looked_at: list[list[int]] = []

    def look(self, processes: Iterable[int]) -> None:
        self.looked_at.append(list(processes))
        self.now += self.seconds_a_look
        self.idle_seconds += self.idle_a_look
        if len(self.looked_at) == 1:
            self.tell({"first": FIRST})
        if len(self.looked_at) == self.ready_at_look:
            self.tell({"ready": []})
            self.tell({"returncode": 0, "stopped": None, "peak_memory_bytes": 0})
            os.close(self.status)

    def tell(self, what: dict[str, object]) -> None:
        os.write(self.status, json.dumps(what).encode() + b"\n")


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SetUp, sandbox._Listening]]:
    keeper = os.fork()
    if keeper == 0:
        time.sleep(600)
        os._exit(0)
    output, output_end = os.pipe()
    status, status_end = os.pipe()
    signals, signals_end = os.pipe()
    set_up = SetUp(keeper, status_end)
    monkeypatch.setattr(progress, "Progress", lambda **_: set_up)
    monkeypatch.setattr(time, "monotonic", lambda: set_up.now)
    monkeypatch.setattr(sandbox, "_LOOK_SECONDS", 0.0)
    os.close(output_end)
    yield set_up, sandbox._Listening(keeper, output, status, signals, 60.0)
    for each in (output, status, signals, signals_end):
        os.close(each)


def test_who_waits_for_a_core_is_waited_for(listening: tuple[SetUp, sandbox._Listening]) -> None:
    set_up, heard = listening
    set_up.seconds_a_look, set_up.ready_at_look = 5.0, 40
    heard.until_the_end()
    heard.end()
    assert sandbox._outcome(heard, set_up.now).returncode == 0
    assert set_up.looked_at[0] == [set_up.keeper]
    assert set_up.looked_at[-1] == [set_up.keeper, FIRST]


@pytest.mark.parametrize(("seconds", "idle", "said"), [(5.0, 4.0, "15 s"), (5.0, 0.0, "300 s")])
def test_what_does_not_answer_ends_it(
    listening: tuple[SetUp, sandbox._Listening], seconds: float, idle: float, said: str
) -> None:
    set_up, heard = listening
    set_up.seconds_a_look, set_up.idle_a_look = seconds, idle
    heard.until_the_end()
    heard.end()
    with pytest.raises(
        SandboxError, match=f"was not ready after {said}: does a network file system"
    ):
        sandbox._outcome(heard, set_up.now)
    os.close(set_up.status)
