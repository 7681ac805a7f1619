"""Where does a job run dry: here, or, at a site that allows no work on login nodes, as a Slurm step on a CPU node?

Such a step is our own Python, started by srun: the job, the GPU that it is to find and the budget go to its standard
input, the traces come back on its standard output, both as JSON. The node must have the same files under the same paths
as this machine: the job's, our installation, the user's cache. What keeps the step from answering (a full partition, a
refused request, a node that dies) says nothing of the job, and ends its dry runs at once: it goes as it was written.
"""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from xmem_slurm.dryrun import engines, spending
from xmem_slurm.dryrun import job as dryrun_job
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.order import DryRunOrder, from_json, to_json
from xmem_slurm.errors import NoEstimate, SlurmError, UnusedGpu, XmemError
from xmem_slurm.sandbox import linux
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.state import signals
from xmem_slurm.trace import File, Trace
from xmem_slurm.units import GIB, MIB

OWN_BYTES = GIB
"""Host memory that the step asks for beside the job's: for our own Python, which reads the traces there."""
START_SECONDS = 30.0
"""Beside the budget: for Python to start from a cold network file system, and the sandbox (`sandbox.SETUP_SECONDS`)."""
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL for an srun that is not waited for any more: it cancels its job first."""

_PROGRAM = (sys.executable, "-I", "-c", "from xmem_slurm.dryrun.cpu_node import main; main()")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""How the cluster is reached; other variables of Slurm's would be options, or make the dry run a step of a job."""
_TRACES = TypeAdapter(list[Trace])
_NO_ESTIMATE = TypeAdapter(tuple[str, list[File] | None, bool, bool])


def run(order: DryRunOrder, where: DryRuns) -> Sequence[Trace]:
    """Run a job dry where the site wants that, and return the traces of the engine that can answer.

    Raises:
        SandboxError, NoEstimate: as `engines.run` does.
        SlurmError: the step did not start in time, was refused, or gave no answer.
    """
    if where.where == "here":
        return engines.run(order)
    place = named(where)
    try:
        answer = json.loads(ask.get()(to_json(order), order.budget, where).strip().rpartition(b"\n")[2])
        if "refused" in answer:
            raise SlurmError(f"{place}: {answer['refused']}")
        spending.add(float(answer["spent"]))
        for kind in (NoEstimate, UnusedGpu):
            if kind.__name__ in answer:
                message, files, on_any_gpu, busy = _NO_ESTIMATE.validate_python(answer[kind.__name__])
                raise kind(message, files, on_any_gpu=on_any_gpu, busy=busy)
        return _TRACES.validate_python(answer["traces"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise SlurmError(f"{place}: no answer that can be read ({type(error).__name__})") from error


def named(where: DryRuns) -> str:
    """Say where a dry run was."""
    return f"the dry run in partition {where.partition}" if where.partition else "the dry run by Slurm"


def main() -> None:
    """Be the step: read what to run from standard input, and write what came of it, one line, to standard output."""
    with signals.clearing_up():
        sys.stdout.write(f"\n{answer(sys.stdin.read())}\n")  # a site's prolog may have printed something


def answer(text: str) -> str:
    """Run on this node what is ordered, and return what came of it."""
    order = from_json(text)
    said: dict[str, Any]
    started = spending.now()
    try:
        found = engines.run(replace(order, job=dryrun_job.on_this_host(order.job)))
        said = {"traces": _TRACES.dump_python(list(found))}
    except NoEstimate as error:
        said = {type(error).__name__: [str(error), error.files, error.on_any_gpu, error.busy]}
    except XmemError as error:
        said = {"refused": f"{platform.node()}: {error}"}
    return json.dumps({**said, "spent": spending.now().since(started).spent})


def words(budget: Budget, where: DryRuns) -> list[str]:
    """Return the options of srun and sbatch that ask for the place and the time of a dry run."""
    asked: Mapping[str, object] = {
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": budget.cpus,
        "mem": f"{(budget.memory_bytes + OWN_BYTES) // MIB}M",
        "time": int((budget.longest + START_SECONDS) // 60) + 1,
        "chdir": "/",
        "partition": where.partition,
        "qos": where.qos,
        "account": where.account,
    }
    return [f"--{name}={value}" for name, value in asked.items() if value is not None]


def environment() -> dict[str, str]:
    """Return the environment for a command of Slurm's that brings a dry run to a node."""
    own = ("SLURM_", "SRUN_", "SBATCH_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own) or name in _KEPT}
    return kept | {"XMEM_ACTIVE": "1"}  # a site's filter has no part in this


def by_srun(order: str, budget: Budget, where: DryRuns) -> bytes:
    """Have a step by srun run what is ordered, and return what it said.

    Raises:
        SlurmError: it cannot be started, fails, or takes longer than it may.
    """
    immediate = max(1, int(where.wait_seconds))
    command = ["srun", "--job-name=xmem-dry-run", f"--immediate={immediate}", "--mpi=none", *words(budget, where)]
    return _step([*command, *_PROGRAM], order.encode(), where.wait_seconds + budget.longest, named(where))


ask: ContextVar[Callable[[str, Budget, DryRuns], bytes]] = ContextVar("ask", default=by_srun)
"""How a node is asked; `array_job` has many dry runs made at once."""


def _step(command: Sequence[str], order: bytes, seconds: float, place: str) -> bytes:
    """Run srun and return its standard output; it ends when this process does.

    Raises:
        SlurmError: it cannot be started, fails, or takes longer than it may.
    """
    try:
        step = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # a Ctrl-C is ours to pass on
            preexec_fn=partial(linux.prctl, linux.PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - one thread
        )
    except OSError as error:
        raise SlurmError(f"{place}: srun: {error.strerror}") from error
    try:
        said, words = step.communicate(order, seconds + START_SECONDS)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{place}: no answer within {seconds + START_SECONDS:.0f} s") from None
    finally:
        if step.poll() is None:
            step.terminate()
            with suppress(subprocess.TimeoutExpired):
                step.wait(GRACE_SECONDS)
            step.kill()
    if step.returncode:
        last = words.decode(errors="replace").strip().rpartition("\n")[2]
        raise SlurmError(f"{place}: {last or f'srun ended with {step.returncode}'}")
    return said
