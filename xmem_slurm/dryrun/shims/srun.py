"""What srun does in a dry run: it starts the first task of each step here, or those that hold a
rank asked for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from xmem_slurm.dryrun.containers import pyxis
from xmem_slurm.dryrun.shims.workers import at_once, become, chosen_of
from xmem_slurm.slurm import options


class _Step(NamedTuple):
    """What srun starts in one component of the job: the first of so many tasks; an ordinary job is
    its own only one.
    """

    component: int
    options: dict[str, str]
    command: Sequence[str]

    def variable(self, name: str) -> str | None:
        """Return what Slurm says of this component; where it says nothing, srun goes by the first
        component's.
        """
        return os.environ.get(f"{name}_HET_GROUP_{self.component}", os.environ.get(name))

    @property
    def nodes(self) -> int:
        nodes_option = self.options.get("nodes", "").partition("-")[0]
        nodes = _number(nodes_option) or _number(self.variable("SLURM_JOB_NUM_NODES")) or 1
        return min(nodes, _number(self.options.get("ntasks")) or nodes)

    @property
    def tasks(self) -> int:
        tasks = _number(self.options.get("ntasks")) or self.nodes * (
            _number(self.options.get("ntasks-per-node")) or 0
        )
        return tasks or max(self.nodes, _number(self.variable("SLURM_NTASKS")) or 1)

    @property
    def programs(self) -> Sequence[tuple[Sequence[int], Sequence[str]]]:
        """Which tasks run which command, with --multi-prog: lines of a file (srun(1), MULTIPLE
        PROGRAM CONFIGURATION).

        `*` stands for all tasks that no line before names.
        """
        if "multi-prog" not in self.options:
            return []
        started, unclaimed = [], list(range(self.tasks))
        for line in (
            Path(self.command[0]).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        ):
            named, *command = shlex.split(line, comments=True) or [""]
            tasks = []
            if command:
                tasks = [task for task in unclaimed if named == "*" or task in _numbers(named)]
            unclaimed = [task for task in unclaimed if task not in tasks]
            started += [(tasks, command)] if tasks else []
        return started

    def command_of(self, task: int) -> Sequence[str]:
        """Return what a task runs; in a line of --multi-prog %t is its number, %o that among the
        line's tasks.
        """
        for tasks, command in self.programs:
            if task in tasks:
                place = str(tasks.index(task))
                return [word.replace("%t", str(task)).replace("%o", place) for word in command]
        return self.command


MOST_TASKS = 8
"""So many tasks of a step that has more than GPUs are run at once, each a process of its own on its
GPU."""
_OF_COMPONENT = ("CPUS_PER_NODE", "NAME", "NODELIST", "NUM_NODES", "PARTITION")
"""The SLURM_JOB_* variables that a step has of its own component; the ids are the first one's (seen
in 22.05)."""


def srun(arguments: Sequence[str]) -> None:
    """Run the first task of `srun [options] command`, here, with the variables of the first of so
    many tasks.

    In a heterogeneous job that is the first task of each component that takes part, all at once: of
    those that `--het-group` names, else of the first; of `command : command`, one each. Tasks are
    counted through in the order of the components (srun(1), --het-group; seen so in 22.05).
    """
    steps = sorted(_steps(arguments), key=lambda step: step.component)
    if "XMEM_RUN_RANKS" not in os.environ:
        _choose_tasks(steps)
    total, before = sum(step.tasks for step in steps), 0
    started = []
    for step in steps:
        chosen = chosen_of(total, range(before, before + step.tasks))
        started += [partial(_start, step, steps, number - before) for number in chosen]
        before += step.tasks
    at_once(started)


def _choose_tasks(steps: Sequence[_Step]) -> None:
    """Ask for the tasks that the first one of their component cannot stand for.

    Those are all tasks of its first node where they are more than the GPUs there, and of several
    programs (--multi-prog) the first task of each.
    """
    chosen, before = set[int](), 0
    for step in steps:
        # Nothing is known in an empty environment.
        gpus = int(step.variable("XMEM_DEVICE_COUNT") or 0)
        per_node = -(-step.tasks // step.nodes)
        shared = range(min(per_node, MOST_TASKS)) if 0 < gpus < per_node else range(1)
        if per_node - len(shared) and len(shared) > 1:
            os.environ["XMEM_TASKS_NOT_RUN"] = str(per_node - len(shared))
        chosen |= {before + task for task in {*shared, *(tasks[0] for tasks, _ in step.programs)}}
        before += step.tasks
    if len(chosen) > len(steps):
        os.environ["XMEM_RUN_RANKS"] = f"{','.join(map(str, sorted(chosen)))}/{before}"


def _steps(arguments: Sequence[str]) -> list[_Step]:
    """Read srun's command line; nothing where it has no command."""
    steps = []
    colons = [at for at, word in enumerate(arguments) if word == ":"]
    for index, end in enumerate([*colons, len(arguments)]):
        words = arguments[colons[index - 1] + 1 if index else 0 : end]
        occurrences, command = options.scan(words, options.srun_table().with_options(pyxis.OPTIONS))
        values = {occurrence.name: occurrence.value or "" for occurrence in occurrences}
        group = values.get("het-group") or values.get("pack-group") or str(index)
        if command < len(words):
            steps += [_Step(component, values, words[command:]) for component in _numbers(group)]
    return steps


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as "0,2-3"."""
    ends = [part.partition("-") for part in text.split(",")]
    return [
        number for first, _, last in ends for number in range(int(first), int(last or first) + 1)
    ]


def _start(step: _Step, steps: Sequence[_Step], number: int) -> NoReturn:
    """Become task `number` of one of the steps that srun starts together; tasks fill one node after
    another.
    """
    nodes, tasks = sum(peer.nodes for peer in steps), sum(peer.tasks for peer in steps)
    before = [(peer.nodes, peer.tasks) for peer in steps if peer.component < step.component]
    per_node = -(-step.tasks // step.nodes)
    node, local = divmod(number, per_node)
    node += sum(nodes for nodes, _ in before)
    of_task = _number(step.options.get("gpus-per-task") or step.variable("SLURM_GPUS_PER_TASK"))
    of_job = {
        name: step.variable(name) for name in (f"SLURM_JOB_{suffix}" for suffix in _OF_COMPONENT)
    }
    os.environ.update({name: value for name, value in of_job.items() if value is not None})
    os.environ.update(dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), "0"))
    os.environ.update(SLURM_LOCALID=str(local), SLURM_NODEID=str(node), XMEM_NODE=str(node))
    os.environ["SLURM_PROCID"] = str(number + sum(tasks for _, tasks in before))
    os.environ["XMEM_TASK"] = f"{os.environ['SLURM_PROCID']}/{tasks}"
    os.environ.update(
        dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(tasks))
    )
    os.environ.update(dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(nodes)))
    os.environ["SLURM_NTASKS_PER_NODE"] = str(per_node)
    count = os.environ.get(f"XMEM_DEVICE_COUNT_HET_GROUP_{step.component}")
    if count is not None:
        os.environ.update(
            XMEM_COMPONENT=str(step.component), XMEM_DEVICE_COUNT=count, SLURM_GPUS_ON_NODE=count
        )
        _see_gpus(range(int(count)))
    if of_task:  # Slurm shows such a task its own GPUs only (srun(1), --gpus-per-task)
        _see_gpus(range(local * of_task, (local + 1) * of_task))
    command, container = step.command_of(number), pyxis.container_options(step.options, os.environ)
    if container:
        os.environ.update(pyxis.variables(container))
        command = pyxis.started(container, command, os.environ)
    become(command)


def _see_gpus(numbers: range) -> None:
    """Set what Slurm tells a process of its GPUs; of none it tells nothing, and what was there
    before stays.
    """
    if numbers:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["GPU_DEVICE_ORDINAL"] = ",".join(
            map(str, numbers)
        )
    else:
        os.environ.pop("SLURM_GPUS_ON_NODE", None)


def _number(text: str | None) -> int | None:
    """Return the number at the end of `text` ("4", "h100:2"), or None."""
    last = (text or "").rpartition(":")[2]
    return int(last) if last.isdecimal() else None
