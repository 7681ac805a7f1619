"""Many dry runs at once: the tasks of one array job on the CPU nodes where a site wants its dry runs.

What a job needs to be run on is found out as one goes: another kind of GPU where it does not fit the first (`sizing`).
So all jobs are sized together, in rounds: each as far as the dry runs that it wants are known; then those that are
wanted run, all at once; and again, until nothing is wanted. Orders and answers are files in a folder of the user's
cache, which the nodes must see. A task that does not answer says nothing of the others.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import platformdirs

from xmem_slurm.dryrun import cpu_node
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.errors import DeviceBuildError, NoEstimate, SandboxError, SlurmError, XmemError
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.state import signals

MOST_TASKS = 1000
"""Of one array job: Slurm's MaxArraySize is 1001 where a site does not say otherwise (slurm.conf(5))."""

MOST_ROUNDS = 20
"""A job wants another dry run for each kind of GPU in question, and for the last task of an array."""

_CLOCK = ("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME")
_POLL_SECONDS = 0.3
_PROGRAM = (sys.executable, "-I", "-c", "from xmem_slurm.dryrun.array_job import task; task()")

_T = TypeVar("_T")


class _Wanted(Exception):  # noqa: N818 - the dry run is not known yet
    pass


def together(size_each: Sequence[Callable[[], _T]], where: DryRuns) -> list[_T | XmemError]:
    """Size jobs, with the dry runs that they want made at once where the site has them on its nodes.

    Each of `size_each` sizes a job. Returned is what it returns, or why the job could not be run dry.
    """
    known: dict[str, bytes | SlurmError] = {}
    wanted: dict[str, str] = {}
    budget: Budget

    def ask(order: str, allowed: Budget, _where: DryRuns) -> bytes:
        nonlocal budget
        key = _key(order)
        if key not in known:
            wanted[key], budget = order, allowed
            raise _Wanted
        found = known[key]
        if isinstance(found, SlurmError):
            raise found
        return found

    before = cpu_node.ask.set(ask)
    try:
        for _ in range(MOST_ROUNDS):
            found = [_sized(size) for size in size_each]
            if not wanted:
                break
            orders = list(wanted.values())
            several = len(orders) > 1
            answers = run(orders, budget, where) if several else [_one(orders[0], budget, where)]
            known |= zip(wanted, answers, strict=True)
            wanted.clear()
    finally:
        cpu_node.ask.reset(before)
    endless = SlurmError(f"it wants more than {MOST_ROUNDS} dry runs")
    return [endless if each is None else each for each in found]


def _key(order: str) -> str:
    """Return what stays the same where the same dry run is wanted again: not the time of day, nor that for it."""
    what = json.loads(order)
    environ = {name: value for name, value in what["job"]["environ"].items() if name not in _CLOCK}
    return json.dumps({**what, "job": {**what["job"], "environ": environ}, "budget": None})


def _sized(size: Callable[[], _T]) -> _T | XmemError | None:
    """Return None for a job whose dry runs are not all known."""
    try:
        return size()
    except _Wanted:
        return None
    except (NoEstimate, SandboxError, DeviceBuildError, SlurmError) as error:
        return error


def _one(order: str, budget: Budget, where: DryRuns) -> bytes | SlurmError:
    try:
        return cpu_node.by_srun(order, budget, where)
    except SlurmError as error:
        return error


def run(orders: Sequence[str], budget: Budget, where: DryRuns) -> list[bytes | SlurmError]:
    """Run what is ordered as array jobs, and return what each said, or why it said nothing."""
    found: list[bytes | SlurmError] = []
    for first in range(0, len(orders), MOST_TASKS):
        found += _array(orders[first : first + MOST_TASKS], budget, where)
    return found


def _array(orders: Sequence[str], budget: Budget, where: DryRuns) -> list[bytes | SlurmError]:
    place, parent = cpu_node.named(where), platformdirs.user_cache_path("xmem-slurm")
    with signals.clearing_up():  # whoever ends us ends the tasks
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory("", "xmem-dry-runs-", parent, ignore_cleanup_errors=True) as private:
                folder = Path(private)
                for index, order in enumerate(orders):
                    (folder / f"{index}.json").write_text(order, encoding="utf-8")
                words = _submit(folder, len(orders), budget, where)
                return [_answer(folder, index, place, words) for index in range(len(orders))]
        except OSError as error:
            return [SlurmError(f"{place}: {error.filename}: {error.strerror}")] * len(orders)
    raise AssertionError("a signal that was noted ends the process")


def _submit(folder: Path, count: int, budget: Budget, where: DryRuns) -> str:
    """Have sbatch run the tasks, and wait as long as they begin and answer; return its last words.

    No task may take longer than its budget, and while none runs none may wait longer for its turn than the site has it:
    the tasks that are left are then given up.
    """
    command = ["sbatch", "--quiet", "--wait", f"--job-name={folder.name}", f"--array=0-{count - 1}%{where.at_once}"]
    command += [f"--output={folder}/%a.out", *cpu_node.words(budget, where), f"--wrap={shlex.join(_PROGRAM)}"]
    environ = cpu_node.environment() | {"XMEM_ORDERS": str(folder)}
    with (folder / "sbatch").open("w+b") as said:
        try:
            waiting = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environ)
        except OSError as error:
            return f"sbatch: {error.strerror}"
        answers, begun, patience = 0, 0, where.wait_seconds + cpu_node.START_SECONDS
        until = time.monotonic() + patience
        try:
            while waiting.poll() is None and answers < count and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
                now = [len(list(folder.glob(f"*.{kind}"))) for kind in ("answer", "begun")]
                if now != [answers, begun]:
                    answers, begun = now
                    patience = (budget.longest if begun > answers else where.wait_seconds) + cpu_node.START_SECONDS
                    until = time.monotonic() + patience
        finally:
            if waiting.poll() is None and answers < count:
                with suppress(OSError):
                    subprocess.run(["scancel", f"--name={folder.name}"], env=environ, check=False)
            waiting.kill()
            waiting.wait()
        if time.monotonic() >= until:
            return f"no answer within {patience:.0f} s"
        return _last_line(folder / "sbatch")


def _answer(folder: Path, index: int, place: str, words: str) -> bytes | SlurmError:
    with suppress(OSError):
        return (folder / f"{index}.answer").read_bytes()
    return SlurmError(f"{place}: {_last_line(folder / f'{index}.out') or words or 'no answer'}")


def _last_line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return ""


def task() -> None:
    """Be a task of the array: run what is ordered of it, and leave the answer beside the order, whole or not at all."""
    order = Path(os.environ.pop("XMEM_ORDERS"), f"{os.environ['SLURM_ARRAY_TASK_ID']}.json")
    order.with_suffix(".begun").touch()
    part = order.with_suffix(".part")
    part.write_text(cpu_node.answer(order.read_text(encoding="utf-8")), encoding="utf-8")
    part.replace(order.with_suffix(".answer"))
