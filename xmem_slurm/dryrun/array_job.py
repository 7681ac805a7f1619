"""Many dry runs at once: the tasks of one array job on the CPU nodes where a site wants its dry
runs.

Orders and answers are files in a folder of the user's cache, which the nodes must see. A task
(`on_node`) that does not answer says nothing of the others.
"""

import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from xmem_slurm import isolated
from xmem_slurm.dryrun import cpu_node
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import DryRunResult, order_to_json, result_from_json
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import SlurmError
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.state import own_files, signals, throwaway

MOST_TASKS = 1000
"""Of one array job: Slurm's MaxArraySize is 1001 where a site does not say otherwise
(slurm.conf(5))."""

_POLL_SECONDS = 0.3
_START = "from xmem_slurm.dryrun.on_node import task; task()"


def run(orders: Sequence[DryRunOrder], where: DryRuns) -> list[DryRunResult | SlurmError]:
    """Run what is ordered as array jobs, and return what came of each, or why nothing did."""
    results: list[DryRunResult | SlurmError] = []
    for first in range(0, len(orders), MOST_TASKS):
        results += _array(orders[first : first + MOST_TASKS], where)
    return results


def _array(orders: Sequence[DryRunOrder], where: DryRuns) -> list[DryRunResult | SlurmError]:
    """Run what is ordered as one array job, in a folder that goes with it."""
    place, parent = cpu_node.named(where), own_files.cache_folder("")
    with signals.clearing_up():  # whoever ends us ends the tasks
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # By machine: where a file system keeps locks to itself, only this one knows whose
            # folder is held.
            with throwaway.made(parent, f"xmem-dry-runs-{platform.node()}-") as folder:
                for index, order in enumerate(orders):
                    (folder / f"{index}.json").write_text(order_to_json(order), encoding="utf-8")
                budget = max((order.budget for order in orders), key=lambda budget: budget.longest)
                words = _submit(folder, len(orders), budget, where)
                return [_answer(folder, index, place, words) for index in range(len(orders))]
        except OSError as error:
            return [SlurmError(f"{place}: {error.filename}: {error.strerror}")] * len(orders)
    raise AssertionError("a signal that was noted ends the process")


def _submit(folder: Path, count: int, budget: Budget, where: DryRuns) -> str:
    """Have sbatch run the tasks, and wait as long as they begin and answer; return its last words.

    No task may take longer than its budget, and while none runs none may wait longer for its turn
    than the site has it: the tasks that are left are then given up.
    """
    command = [
        "sbatch",
        "--quiet",
        "--wait",
        f"--job-name={folder.name}",
        f"--array=0-{count - 1}%{where.at_once}",
    ]
    command += [
        f"--output={folder}/%a.out",
        *cpu_node.words(budget, where),
        f"--wrap={shlex.join(isolated.command(_START))}",
    ]
    environ = cpu_node.environment() | {"XMEM_ORDERS": str(folder)}
    with (folder / "sbatch").open("w+b") as printed:
        try:
            waiting = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env=environ
            )
        except OSError as error:
            return f"sbatch: {error.strerror}"
        answers, begun, patience = 0, 0, where.wait_seconds + cpu_node.START_SECONDS
        until = time.monotonic() + patience
        try:
            while waiting.poll() is None and answers < count and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
                counts = [len(list(folder.glob(f"*.{kind}"))) for kind in ("answer", "begun")]
                if counts != [answers, begun]:
                    answers, begun = counts
                    patience = (
                        budget.longest if begun > answers else where.wait_seconds
                    ) + cpu_node.START_SECONDS
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


def _answer(folder: Path, index: int, place: str, words: str) -> DryRunResult | SlurmError:
    try:
        return result_from_json((folder / f"{index}.answer").read_bytes(), place)
    except SlurmError as error:
        return error
    except OSError:
        return SlurmError(f"{place}: {_last_line(folder / f'{index}.out') or words or 'no answer'}")


def _last_line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return ""
