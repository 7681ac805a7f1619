"""How does a job ask for another number of GPUs? What it asks for by task stays so: each task gets
its own by that.
"""

from collections.abc import Collection

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm import gres
from xmem_slurm.slurm.edit import Edit, apply
from xmem_slurm.slurm.request import GPU_OPTIONS, Request
from xmem_slurm.slurm.submission import Submission

_BY_TASK = ("gpus-per-task", "tres-per-task")


def asking(
    job: Submission, per_node: int, nodes: int, tasks: int | None, options: Collection[str]
) -> Submission:
    """Return the job asking for so many GPUs on each of so many nodes, of whichever kind, and for
    no shares of one.

    `tasks` are those of a node, None: as they are. `options` are those that the site takes for
    GPUs.

    Raises:
        UsageError: that cannot be said without changing something else, or tasks would not have as
            many GPUs each.
    """
    request = job.request
    spelled = [
        name
        for name in GPU_OPTIONS
        if any(accelerator.setting.name == name for accelerator in request.accelerators)
    ]
    by_task = [name for name in _BY_TASK if name in spelled]
    edits = [] if tasks is None else _tasks(request, tasks, nodes, is_by_task=bool(by_task))
    if (request.gpus_per_node, request.nodes or 1) != (per_node, nodes):
        values = {
            name: gres.without(name, request.value(name) or "", ("gpu", *gres.SHARED))
            for name in spelled
        }
        if by_task:
            gpus_per_task = _gpus_per_task(per_node, tasks or request.tasks_per_node)
            values |= {
                name: gres.with_amount(name, request.value(name) or "", gpus_per_task)
                for name in by_task
            }
        elif "gres" in options and (
            _has_gpu(request.value("gres")) or "gpus-per-node" not in options
        ):
            other_gres = values["gres"] if "gres" in values else request.value("gres")
            values["gres"] = gres.with_entry(other_gres, f"gpu:{per_node}")
        else:
            values["gpus-per-node"] = str(per_node)
        edits += [Edit(name, value) for name, value in values.items()]
        if (request.nodes or 1) != nodes or request.value("nodes") is not None or by_task:
            edits.append(Edit("nodes", str(nodes)))
    return apply([edit for edit in edits if edit.value != request.value(edit.name)], job)


def _has_gpu(of_gres: str | None) -> bool:
    return of_gres is not None and any(entry.is_gpu for entry in gres.parse(of_gres))


def _gpus_per_task(per_node: int, tasks: int) -> int:
    if per_node % tasks:
        raise UsageError(f"{per_node} GPUs on a node cannot be asked for by {tasks} tasks")
    return per_node // tasks


def _tasks(request: Request, tasks: int, nodes: int, *, is_by_task: bool) -> list[Edit]:
    """Return what asks for so many tasks: where the job says how many, and where GPUs are asked for
    by them.
    """
    numbers = {"ntasks": tasks * nodes, "ntasks-per-node": tasks}
    names = [name for name in numbers if request.value(name) is not None] or (
        ["ntasks"] if is_by_task else []
    )
    return [Edit(name, str(numbers[name])) for name in names]
