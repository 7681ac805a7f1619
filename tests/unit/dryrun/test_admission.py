"""Lines of dry runs: never more at once than a site allows, none lost, and whoever dies leaves no
place behind."""

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from xmem_slurm.dryrun import admission
from xmem_slurm.errors import Busy
from xmem_slurm.site.schema import DryRuns

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))


def hold(rules: DryRuns, held: Event, until: Event, user: int) -> None:
    if user != os.getuid():
        os.setuid(user)
    with admission.turn(rules, 10, lambda _: None):
        held.set()
        until.wait()


@pytest.fixture
def holder() -> Iterator[Callable[..., multiprocessing.context.ForkProcess]]:
    """Start a process that holds a turn until it is killed."""
    started: list[multiprocessing.context.ForkProcess] = []

    def start(rules: DryRuns, user: int = os.getuid()) -> multiprocessing.context.ForkProcess:
        held = FORK.Event()
        process = FORK.Process(target=hold, args=(rules, held, FORK.Event(), user), daemon=True)
        process.start()
        started.append(process)
        assert held.wait(10)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize(
    ("rules", "whose"),
    [
        (DryRuns(per_user=1, per_machine=9), "of yours"),
        (DryRuns(per_user=9, per_machine=1), "on this machine"),
    ],
)
def test_who_has_no_turn_in_time_is_told_the_place_and_goes(
    holder: Callable[..., multiprocessing.context.ForkProcess], rules: DryRuns, whose: str
) -> None:
    holder(rules)
    told: list[str] = []
    with (
        pytest.raises(Busy, match=f"place 1 in the queue of dry runs {whose}, 1 at a time"),
        admission.turn(rules, 0.3, told.append),
    ):
        pass
    assert len(told) == 1, "one line, however long it takes"
    assert f"place 1 in the queue of dry runs {whose}" in told[0]


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_users_share_the_line_of_a_machine_and_no_other(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    holder(DryRuns(per_user=1, per_machine=1), user=65534)
    with admission.turn(DryRuns(per_user=1, per_machine=2), 0, lambda _: None):
        pass
    with (
        pytest.raises(Busy, match="on this machine"),
        admission.turn(DryRuns(per_machine=1), 0, lambda _: None),
    ):
        pass


def test_a_place_is_free_again_however_its_process_ended(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    rules = DryRuns(per_user=1, per_machine=1)
    process = holder(rules)
    with pytest.raises(Busy), admission.turn(rules, 0, lambda _: None):
        pass
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with admission.turn(rules, 0, lambda _: None):
        pass


def test_a_dry_run_elsewhere_is_none_of_this_machine(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    holder(DryRuns(per_user=9, per_machine=1))
    with admission.turn(DryRuns(where="srun", per_user=9, per_machine=1), 0, lambda _: None):
        pass


def _count_while_running(arguments: tuple[DryRuns, str]) -> int:
    rules, folder = arguments
    with admission.turn(rules, 600, lambda _: None):
        mark = Path(folder, str(os.getpid()))
        mark.touch()
        time.sleep(0.02)
        count = len(list(Path(folder).iterdir()))
        mark.unlink()
    return count


def test_never_more_at_once_than_allowed_and_everybody_in_the_end(tmp_path: Path) -> None:
    rules, crowd = DryRuns(per_user=3, per_machine=2), 40
    marks = tmp_path / "marks"
    marks.mkdir()
    with FORK.Pool(crowd) as pool:
        counts = pool.map(_count_while_running, [(rules, str(marks))] * crowd, chunksize=1)
    assert len(counts) == crowd
    assert max(counts) == 2


def test_one_of_equal_submissions_finds_the_answer_for_all() -> None:
    answers, sized, begun = list[str](), list[int](), threading.Barrier(20)

    def submit() -> None:
        begun.wait()
        with admission.alone(
            "key", 30, lambda _: None, lambda: answers[0] if answers else None
        ) as found:
            if found is None:
                sized.append(1)
                time.sleep(0.3)
                answers.append("an l4 will do")

    threads = [threading.Thread(target=submit) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sized) == 1


@pytest.mark.parametrize(("held_for", "seconds", "goes"), [(0.2, 60, False), (1.5, 2, True)])
def test_what_was_not_enough_for_an_equal_submission_is_not_tried_again(
    held_for: float, seconds: float, *, goes: bool
) -> None:
    """One that ended early may have been ended by its user: then another one goes on."""
    held, goes_on = threading.Event(), contextlib.nullcontext()
    expected = pytest.raises(Busy, match=r"being dry-run.* had no answer") if goes else goes_on

    def first() -> None:
        with admission.alone("key", 0, lambda _: None, lambda: None):
            held.set()
            time.sleep(held_for)

    thread = threading.Thread(target=first)
    thread.start()
    assert held.wait(10)
    with expected, admission.alone("key", seconds, lambda _: None, lambda: None) as found:
        assert found is None
    thread.join()


def test_whoever_waits_for_an_equal_submission_that_has_no_turn_goes_with_it_unless_it_has_more_time() -> (
    None
):
    held, told = threading.Event(), list[str]()

    def first() -> None:
        with contextlib.suppress(Busy), admission.alone("key", 30, lambda _: None, lambda: None):
            held.set()
            time.sleep(0.3)
            raise Busy("place 7 in the queue")

    def behind(seconds: float) -> None:
        try:
            with admission.alone("key", seconds, lambda _: None, lambda: None):
                told.append("goes on")
        except Busy as error:
            told.append(str(error))

    threads = [
        threading.Thread(target=behind, args=[seconds]) for seconds in (30, 20, 3600, 10, 29)
    ]
    threads = [threading.Thread(target=first), *threads]
    threads[0].start()
    assert held.wait(10)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["another submission of it had no turn in that time"] * 4 + ["goes on"]


def test_a_hostile_user_who_holds_every_place_delays_and_no_more(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    rules = DryRuns(per_user=5, per_machine=2)
    holder(rules)
    holder(rules)
    began = time.monotonic()
    with pytest.raises(Busy), admission.turn(rules, 0.5, lambda _: None):
        pass
    assert time.monotonic() - began < 60, "until the place is free, which it never is"


def test_whoever_stands_behind_too_many_goes_at_once(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    """A dry run takes a while: twenty of them are not done within ten seconds."""
    rules, told = DryRuns(per_user=99, per_machine=1), list[str]()
    holder(rules)
    behind = [admission._Line("machine", 1, "on this machine").__enter__() for _ in range(20)]
    with pytest.raises(Busy, match="place 21 in the queue"), admission.turn(rules, 10, told.append):
        pass
    assert told == [], "who waits is told of it"
    for each in behind:
        each.held.close()


def test_whoever_sees_that_the_line_does_not_move_goes_before_the_time_is_up(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    """Three dry runs come before, and the first of them takes more than a quarter of the time."""
    rules = DryRuns(per_user=99, per_machine=1)
    holder(rules)
    behind = [admission._Line("machine", 1, "on this machine").__enter__() for _ in range(3)]
    late = r"within the \d+ s that are left it is not its turn: place 4"
    with pytest.raises(Busy, match=late), admission.turn(rules, 10, lambda _: None):
        pass
    for each in behind:
        each.held.close()


def test_who_waits_sleeps(holder: Callable[..., multiprocessing.context.ForkProcess]) -> None:
    rules = DryRuns(per_user=9, per_machine=1)
    holder(rules)
    spent = time.process_time()
    with pytest.raises(Busy), admission.turn(rules, 2, lambda _: None):
        pass
    with (
        _held("a name"),
        pytest.raises(Busy),
        admission.alone("a name", 2, lambda _: None, lambda: None),
    ):
        pass
    assert time.process_time() - spent < 0.05


@contextmanager
def _held(name: str) -> Iterator[None]:
    with admission.alone(name, 0, lambda _: None, lambda: None):
        yield


def test_the_first_who_waits_has_whichever_place_is_free_first(
    holder: Callable[..., multiprocessing.context.ForkProcess],
) -> None:
    rules = DryRuns(per_user=9, per_machine=2)
    first = holder(rules)
    holder(rules)
    threading.Timer(0.5, first.kill).start()
    with admission.turn(rules, 20, lambda _: None):
        pass


def test_a_name_that_somebody_took_who_does_not_listen_is_looked_at_now_and_then() -> None:
    row = admission._Row("machine")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as squatter:
        squatter.bind(row._address(0))
        spent = time.process_time()
        with pytest.raises(Busy), admission.turn(DryRuns(per_machine=1), 1, lambda _: None):
            pass
        assert time.process_time() - spent < 0.2
    with admission.turn(DryRuns(per_machine=1), 0, lambda _: None):
        pass
