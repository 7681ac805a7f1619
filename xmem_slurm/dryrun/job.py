"""What would run on the job's first node: the script, its arguments, its folder and the environment
it would find.
"""

import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from xmem_slurm.cluster import client
from xmem_slurm.dryrun.containers import pyxis
from xmem_slurm.dryrun.shims import slurm_queries
from xmem_slurm.slurm import array_numbers, body, gres, immaterial, submitter
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import MIB

JOB_ID = "1"
"""A dry run has no job: this number stands where scripts expect one."""
MOST_TASKS = 100_000
"""Of a longer array the tasks are not counted one by one. Slurm allows 1,000 by default
(MaxArraySize)."""
TASK_PID = "2"
"""The script's process in the sandbox: it has a PID namespace of its own."""
NOT_CHOSEN = "dry-run"
"""Stands for what Slurm would choose: the partition where none is named, the cluster."""
TIME_LIMIT_SECONDS = 24 * 3600
"""Between the job's start and the end that it is told; the dry run has a budget of its own."""
_OUTPUT = "slurm-%j.out"
OUTPUTS = (_OUTPUT, "slurm-%A_%a.out")
"""Where sbatch has a job's output go, and that of the tasks of an array, if nothing else is
said."""
_ASKED = {
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_JOB_ACCOUNT": "account",
}
_MEMORY = {
    "mem": "SLURM_MEM_PER_NODE",
    "mem-per-cpu": "SLURM_MEM_PER_CPU",
    "mem-per-gpu": "SLURM_MEM_PER_GPU",
}

_AS_ASKED = re.compile("SLURM_(CPUS_PER_TASK|GPUS|GPUS_PER_(NODE|TASK)|NTASKS_PER_NODE)")
"""What a heterogeneous job's script finds of each component under a name of its own only:
SLURM_GPUS_HET_GROUP_1."""
_AS_GIVEN = re.compile(
    "SLURM_(JOB_(ACCOUNT|CPUS_PER_NODE|ID|NAME|NODELIST|NUM_NODES|PARTITION)|MEM_PER_.*|NPROCS|NTASKS|TASKS_PER_NODE)"
)
"""What it finds of each component that way, and of the first one under the usual name, too."""

OF_ONE_RUN = ("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_PRIO_PROCESS")
"""What says when the job runs, another time each time, and how nice who submits it is: what sizes a
job behind the filter is nicer (`filter/detached`)."""

_HOSTS = re.compile("SLURM_(JOB_)?NODELIST(_HET_GROUP_.*)?|SLURMD_NODENAME")
"""What names the nodes: the host of the dry run stands for them all."""

_LOGIN_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Job:
    """A batch job, ready to be run here. `environ` is complete: what it exports and the SLURM_*
    variables.

    `gpus` says for each component how many GPUs its first node has; an ordinary job is its own only
    component. `container` holds the options of sbatch by which the script itself runs in a
    container: --container (an OCI bundle), or pyxis'.
    """

    script: bytes
    arguments: Sequence[str]
    folder: Path
    environ: Mapping[str, str]
    gpus: Sequence[int] = (1,)
    container: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = OUTPUTS
    """The names of the files that Slurm writes for it, with their placeholders."""
    by_shell: bool = True
    """Whether a shell runs the script."""
    array: Sequence[int] = ()
    """The tasks of an array, those first that stand for it best; not all of a long one."""
    has_input: bool = False
    """Whether Slurm gives it a file to read where a job has nobody to type (--input)."""
    material: bytes | None = None
    """What of the script can matter (`immaterial`), where that is known."""

    def as_task(self, number: int) -> "Job":
        """Return it as this task of its array."""
        return replace(self, environ={**self.environ, "SLURM_ARRAY_TASK_ID": str(number)})


def from_submission(job: Submission) -> Job:
    """Return what the first node of a submission would run: of a heterogeneous job, that of its
    first component.
    """
    request, command_line = job.request, job.command_line
    folder = Path(request.chdir or ".").absolute()
    script = job.script
    if script is None:
        script = f"#!/bin/sh\n{command_line.wrap}\n".encode(errors="surrogateescape")
    facts_variable = {slurm_queries.FACTS: json.dumps(facts(job, folder))}
    environ = (
        exported(job.environ, request.value("export")) | slurm_variables(request) | facts_variable
    )
    bundle = request.value("container")
    container = pyxis.of_batch_script(job) if bundle is None else {"container": bundle}
    outputs = tuple(filter(None, (request.value("output"), request.value("error")))) or OUTPUTS
    by_shell = job.parsed_script is None or job.parsed_script.interpreter in body.SHELLS
    array = array_numbers.spread(array_numbers.ranges(request.value("array") or ""))
    return Job(
        script,
        command_line.script_arguments,
        folder,
        environ,
        _gpus(request),
        container=container,
        outputs=outputs,
        by_shell=by_shell,
        array=array,
        has_input=request.value("input") is not None,
        material=_material(job),
    )


def _material(job: Submission) -> bytes | None:
    """Return what of a submission's script can matter, with a mark where it has what cannot."""
    script = job.parsed_script
    return None if script is None else b"\0".join(immaterial.parted(script).material)


def facts(job: Submission, folder: Path) -> dict[str, str]:
    """Return what Slurm knows of a job beside its variables, by scontrol's names; `folder` is the
    job's.
    """
    request, line = job.request, job.command_line
    path = client.find_script(job)
    words = [str(path.absolute()), *line.script_arguments] if path is not None else []
    fields = {
        "Command": " ".join(words),
        "WorkDir": str(folder),
        "StdOut": str(folder / _filled_in(request, request.value("output") or _OUTPUT)),
        "StdErr": str(
            folder
            / _filled_in(request, request.value("error") or request.value("output") or _OUTPUT)
        ),
        "Account": request.value("account"),
        "QOS": request.value("qos"),
        "Features": request.constraint,
        "Comment": request.value("comment"),
        "TresPerNode": request.value("gres") and f"gres:{request.value('gres')}",
        "TresPerJob": request.value("gpus") and f"gres:gpu:{request.value('gpus')}",
    }
    return {name: value for name, value in fields.items() if value}


def _filled_in(request: Request, pattern: str) -> str:
    """Return the name of a file of output, as far as it is known (sbatch(1), FILENAME PATTERN)."""
    values_by_letter = {
        "j": JOB_ID,
        "A": JOB_ID,
        "x": request.job_name or "sbatch",
        "u": submitter.name(),
    }
    return re.sub("%([jAxu])", lambda match: values_by_letter[match[1]], pattern)


def on_this_host(job: Job) -> Job:
    """Return a job that was made ready on another host, with this one for its nodes."""
    return replace(
        job,
        environ={n: platform.node() if _HOSTS.fullmatch(n) else v for n, v in job.environ.items()},
    )


def _gpus(request: Request) -> list[int]:
    """Return the GPUs of each component's first node; all of them where the scheduler decides how
    to spread them.

    A job that asks for none is tried with one.
    """
    fewest = 0 if request.asks_for_gpu else 1
    return [
        component.gpus_per_node or component.gpus_total or (1 if component.accelerators else fewest)
        for component in request.components
    ]


def exported(environ: Mapping[str, str], export: str | None) -> dict[str, str]:
    """Return the variables of `environ` that `--export` lets through (sbatch(1); None means ALL).

    Where sbatch has the node load the user's login environment (NONE, and a list without ALL), a
    few variables of ours stand for it. A list is taken from left to right: what comes later wins
    (`env_merge_filter`, src/common/env.c). Slurm's own variables come through in any case, and what
    is asked of us.
    """
    words = _words(export or "ALL")
    if {"ALL", "NIL"} & {word.upper() for word in words}:
        variables: dict[str, str] = {}
    else:
        variables = {name: environ[name] for name in _LOGIN_VARIABLES if name in environ}
    for word in words:
        name, has_value, value = word.partition("=")
        if word.upper() == "ALL":
            variables |= environ
        elif has_value:
            variables[name] = value
        elif name in environ:
            variables[name] = environ[name]
    return variables | {
        name: value for name, value in environ.items() if name.startswith(("SLURM_", "XMEM_"))
    }


def _words(text: str) -> list[str]:
    """Split at commas, but not inside quotes, which go (`find_quote_token`, src/common/env.c)."""
    pieces = re.findall(r"""((?:[^,'"]|'[^']*'|"[^"]*")+)""", text)
    return [
        re.sub(r"""'([^']*)'|"([^"]*)\"""", lambda quoted: quoted[1] or quoted[2] or "", piece)
        for piece in pieces
    ]


def slurm_variables(request: Request) -> dict[str, str]:
    """Return what Slurm sets in a batch script; the host that we are on stands for the nodes of all
    components.

    Source: the section OUTPUT ENVIRONMENT VARIABLES of sbatch(1), Slurm 22.05 to 25.11; for
    heterogeneous jobs, what a job of 22.05 finds (tests/integration/dryrun/test_dry_run.py).
    """
    components = [
        _of_component(component, gpus)
        for component, gpus in zip(request.components, _gpus(request), strict=True)
    ]
    if len(components) == 1:
        return components[0]
    variables = {
        name: value for name, value in components[0].items() if not _AS_ASKED.fullmatch(name)
    }
    for index, component in enumerate(components):
        component["SLURM_JOB_ID"] = str(int(JOB_ID) + index)
        for name, value in component.items():
            if _AS_ASKED.fullmatch(name) or _AS_GIVEN.fullmatch(name):
                variables[f"{name}_HET_GROUP_{index}"] = value
    return variables | {"SLURM_HET_SIZE": str(len(components))}


def _of_component(request: Request, gpus: int) -> dict[str, str]:
    """Return what Slurm sets for one component, whose first node has so many GPUs."""
    host, nodes = platform.node(), request.nodes or 1
    visible, start = ",".join(map(str, range(gpus))), int(time.time())
    cpus, times = request.cpus_per_node, "" if nodes == 1 else f"(x{nodes})"
    hosts = ("SUBMIT_HOST", "JOB_NODELIST", "NODELIST", "TOPOLOGY_ADDR")
    firsts = ("PROCID", "LOCALID", "NODEID", "GTIDS")
    variables = {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_NAME": request.job_name or "sbatch",
        "SLURM_SUBMIT_DIR": os.getcwd(),  # noqa: PTH109 - as text
        "SLURMD_NODENAME": host,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_TASKS_PER_NODE": f"{request.tasks_per_node}{times}",
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_JOB_CPUS_PER_NODE": f"{cpus}{times}",
        "SLURM_JOB_USER": submitter.name(),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_PARTITION": next(iter(request.partitions), NOT_CHOSEN),
        "SLURM_CLUSTER_NAME": NOT_CHOSEN,
        "SLURM_JOB_START_TIME": str(start),  # this and the next: since 23.02
        "SLURM_JOB_END_TIME": str(start + TIME_LIMIT_SECONDS),
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_SCRIPT_CONTEXT": "prolog_task",
        "SLURM_TASK_PID": TASK_PID,
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
        **{f"SLURM_{name}": host for name in hosts},
        **{f"SLURM_{name}": "0" for name in firsts},
    }
    if gpus:
        variables |= {"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_JOB_GPUS": visible}
        variables |= {"CUDA_VISIBLE_DEVICES": visible, "GPU_DEVICE_ORDINAL": visible}
    if any(
        request.value(name) is not None for name in ("ntasks", "ntasks-per-node", "ntasks-per-gpu")
    ):
        variables |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(request.ntasks))
    if request.cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(request.cpus_per_task)
    option_values = {variable: request.value(option) for variable, option in _ASKED.items()}
    variables |= {variable: value for variable, value in option_values.items() if value is not None}
    for setting in request.memory:
        with suppress(gres.GresError):  # sbatch will say what is wrong with it
            mebibytes = gres.parse_memory(setting.value or "") // MIB
            if mebibytes:  # 0 is all that a node has, which is not known
                variables[_MEMORY[setting.name]] = str(mebibytes)
    return variables | _array_variables(request.value("array") or "")


def _array_variables(array: str) -> dict[str, str]:
    """Return the variables of the first task of an array."""
    ranges = array_numbers.ranges(array)
    if not ranges:
        return {}
    count = sum(map(len, ranges))
    if count < MOST_TASKS:
        count = len({number for numbers in ranges for number in numbers})
    first, *later_numbers = sorted({number for numbers in ranges for number in numbers[:2]})
    return {
        "SLURM_ARRAY_JOB_ID": JOB_ID,
        "SLURM_ARRAY_TASK_ID": str(first),
        "SLURM_ARRAY_TASK_COUNT": str(count),
        "SLURM_ARRAY_TASK_MIN": str(first),
        "SLURM_ARRAY_TASK_MAX": str(max(numbers[-1] for numbers in ranges)),
        "SLURM_ARRAY_TASK_STEP": str(later_numbers[0] - first if later_numbers else 1),
    }
