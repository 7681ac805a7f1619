"""May the tasks of an array need other amounts of memory? Whatever reads SLURM_ARRAY_TASK_ID can
decide by it.
"""

from collections.abc import Iterable, Sequence

from xmem_slurm import trace
from xmem_slurm.dryrun import evidence
from xmem_slurm.dryrun.job import Job
from xmem_slurm.slurm import script_files

_NUMBER = b"SLURM_ARRAY_TASK_ID"


def may_differ(job: Job, traces: Iterable[Sequence[trace.Trace]]) -> bool:
    """Whether the tasks of an array may need other amounts of memory, by the `traces` of each task
    that was run.

    They do so if some need another than others, or read other files; they may if the number is
    named by the script, by one that it runs, or by a file that they read. What installed packages
    name is not looked for: many name everything.
    """
    scripts = [job.script, *script_files.scripts_run(job.script, job.folder, job.environ).values()]
    if any(_NUMBER in script for script in scripts):
        return True
    ran = list(traces)
    files = {file for task in ran for task_trace in task[:1] for file in task_trace.files}
    if evidence.mentions(files, _NUMBER):
        return True
    read = {
        frozenset(evidence.own_paths(task_trace.files)) for task in ran for task_trace in task[:1]
    }
    needs = {peak(task) for task in ran}
    return len(read) > 1 or len(needs) > 1


def peak(traces: Iterable[trace.Trace]) -> int:
    """Return the most that torch reserved in a process of a task, as it was recorded there; 0 where
    nothing was.
    """
    return max((task_trace.recorded.get("reserved_bytes", 0) for task_trace in traces), default=0)
