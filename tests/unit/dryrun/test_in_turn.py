"""Several dry runs of one search at once: in children, in order, within the CPUs and the memory of
one."""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult, Orders
from xmem_slurm.dryrun.in_turn import in_turn
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, SlurmError
from xmem_slurm.site.loading import load_catalogue

GPU = load_catalogue()["l4"]
WHOLE = Budget(memory_bytes=1000)


def wants(*names: str) -> Orders[list[str]]:
    """Stand for a candidate that wants these dry runs, one after the other."""
    found = []
    for name in names:
        result = yield DryRunOrder(Job(name.encode(), (), Path("/"), {}), GPU, WHOLE)
        found.append(f"{result.answer} in {result.spent.seconds:.0f} s")
    return found


def all_of(*several: Orders[list[str]]) -> Callable[[], Orders[list[str]] | None]:
    waiting = iter(several)
    return lambda: next(waiting, None)


def answer(words: str, stopped: str | None = None) -> DryRunResult:
    return DryRunResult(NoEstimate(words), Spent(1), stopped=stopped)


def until_there(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def test_two_run_at_once_and_what_they_return_comes_in_order(tmp_path: Path) -> None:
    """The first ends when the second one's second dry run is over: one after the other they would
    never end."""

    def make(order: DryRunOrder) -> DryRunResult:
        name = order.job.script.decode()
        if name == "a":
            until_there(tmp_path / "b2")
        (tmp_path / name).touch()
        return answer(f"{name} in {os.getppid()}")

    here = os.getpid()
    found = list(in_turn(all_of(wants("a"), wants("b1", "b2"), wants("c")), make, 2, 2))
    assert found == [
        [f"a in {here} in 1 s"],
        [f"b1 in {here} in 1 s", f"b2 in {here} in 1 s"],
        [f"c in {here} in 1 s"],
    ]


def test_who_is_next_is_asked_when_the_oldest_is_done_whichever_ended_first(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    done: list[list[str]] = []
    names = iter("abcd")

    def another() -> Orders[list[str]] | None:
        name = next(names, None)
        if name is None:
            return None
        asked.append((name, len(done)))
        return wants(name)

    def make(order: DryRunOrder) -> DryRunResult:
        name = order.job.script.decode()
        if name in "ac":
            until_there(tmp_path / chr(ord(name) + 1))
        (tmp_path / name).touch()
        return answer(name)

    for found in in_turn(another, make, 2, 2):
        done.append(found)  # noqa: PERF402 - each as it comes
    assert asked == [("a", 0), ("b", 0), ("c", 1), ("d", 2)]


def test_they_share_the_cpus_and_the_memory_of_one_and_who_needs_it_all_runs_alone(
    tmp_path: Path,
) -> None:
    def make(order: DryRunOrder) -> DryRunResult:
        name, memory = order.job.script.decode(), order.budget.memory_bytes
        own = tmp_path / str(os.getpid())
        own.touch()
        beside = len(list(tmp_path.iterdir())) - 1 if memory == WHOLE.memory_bytes else "some"
        own.unlink()
        assert len(os.sched_getaffinity(0)) <= 2
        return answer(
            f"{name} {memory} {beside}", "memory" if name == "large" and memory < 1000 else None
        )

    found = list(
        in_turn(all_of(wants("large"), wants("large", "small"), wants("small")), make, 2, 2)
    )
    large, small = "large 1000 0 in 2 s", "small 500 some in 1 s"
    assert found == [[large], [large, small], [small]]


def test_an_error_ends_the_others_and_leaves_no_process(tmp_path: Path) -> None:
    def make(order: DryRunOrder) -> DryRunResult:
        if order.job.script == b"broken":
            until_there(tmp_path / "waiting")
            raise SlurmError("its node died")
        (tmp_path / "waiting").touch()
        signal.pause()
        raise AssertionError

    with pytest.raises(SlurmError, match="its node died"):
        list(in_turn(all_of(wants("broken"), wants("waits")), make, 2, 2))
    with pytest.raises(ChildProcessError) as refused:
        os.waitpid(-1, os.WNOHANG)
    assert refused.value.errno == errno.ECHILD


def test_a_child_that_dies_has_no_answer_and_the_others_have_theirs() -> None:
    """One that was killed is taken to have spent all that it might."""

    def make(order: DryRunOrder) -> DryRunResult:
        if order.job.script == b"killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if order.job.script == b"fails":
            raise OSError(errno.ENOSPC, "No space left on device")
        return answer("well")

    found = list(in_turn(all_of(wants("killed"), wants("fails", "b")), make, 2, 2))
    killed = "the process that made its dry run was killed in 60 s"
    assert found == [
        [killed],
        ["OSError: [Errno 28] No space left on device in 0 s", "well in 1 s"],
    ]
