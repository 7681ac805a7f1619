"""Is a job's request for host memory raised to what its processes were seen to hold, and how far?

Only where the site or the user lets it, in the option that is there, and never lowered. What a dry
run saw is no promise: CUDA takes some on the host, too, for which there is a rule of thumb
(`sizing.host_memory`).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from xmem_slurm.decision import RaisedMemory
from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting.rewrite import with_more_memory
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing import host_memory
from xmem_slurm.sizing.demand import demand_of, memory_per_node
from xmem_slurm.sizing.host_memory import NodeMemory
from xmem_slurm.sizing.placement import candidates
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.edit import Edit
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import GIB, MIB, human

if TYPE_CHECKING:
    from xmem_slurm.submission.answer import Wishes

_STEP: Mapping[str, int] = {"mem": GIB, "mem-per-gpu": GIB, "mem-per-cpu": 256 * MIB}
"""What each is rounded up to: a figure that a person would have written. A job has many CPUs."""


def raised(
    job: Submission,
    sized: Mapping[int, Sizing],
    wishes: "Wishes",
    site: Site,
    gpus: Mapping[str, Gpu],
    *,
    in_script: bool,
) -> tuple[Submission, RaisedMemory | None]:
    """Return the job with its request for host memory raised, where that is let, and what became of
    it; None where there is nothing to be said.

    Without `in_script` the script stays as it is, where that can be. A heterogeneous job's stays:
    Slurm carries --mem from one component to the next.
    """
    if job.request.other_components:
        return job, None
    choice = sized[0].placement.choice
    if choice is None:
        return job, None
    memory = host_memory.of_job(sized[0].estimate, memory_per_node(job.request))
    return raised_on(job, memory, wishes, site, gpus, option=choice, in_script=in_script)


def raised_on(
    job: Submission,
    memory: NodeMemory,
    wishes: "Wishes",
    site: Site,
    gpus: Mapping[str, Gpu],
    *,
    option: str,
    in_script: bool = True,
) -> tuple[Submission, RaisedMemory | None]:
    """Return the same of a job of one component that gets this option, and holds so much of the
    memory of its nodes.
    """
    request = job.request
    units = _units(request)
    if not memory.is_short or not units or not site.policy.rewrite or wishes.advise:
        return job, None
    if not (site.policy.raise_mem if wishes.raise_mem is None else wishes.raise_mem):
        return job, RaisedMemory()
    name = request.memory[0].name
    each = -(-memory.to_ask_for // (units * _STEP[name])) * _STEP[name]
    demand = replace(demand_of(request, site), memory_bytes=units * each)
    if option not in candidates(demand, site, gpus):
        has = f"no node of this site with {option} has {human(units * each)}"
        return job, RaisedMemory(why_not=f"it is not raised, as {has} for the job")
    with suppress(UsageError):
        edited, change = with_more_memory(job, Edit(name, _written(each)), in_script=in_script)
        return edited, RaisedMemory(change)
    return job, RaisedMemory(why_not="it is not raised, as that would change something else, too")


def _units(request: Request) -> int:
    """Return how often a node has what the request says; 0 where that is not known, or several
    options say it.
    """
    if len(request.memory) != 1:
        return 0
    match request.memory[0].name:
        case "mem-per-cpu":  # of whole nodes it gets all CPUs, and their memory
            return 0 if "exclusive" in request.settings else request.cpus_per_node
        case "mem-per-gpu":
            return request.gpus_per_node or 0
    return 1


def _written(size: int) -> str:
    """Write a size as sbatch takes it."""
    return f"{size // GIB}G" if size % GIB == 0 else f"{size // MIB}M"
