"""How does a job run dry as a Slurm step on a CPU node, at a site that allows no work on login
nodes?

Such a step is our own Python (`on_node`), started by srun: the order goes to its standard input,
the result comes back on its standard output, both as JSON. The node must have the same files under
the same paths as this machine: the job's, our installation, the user's cache. What keeps the step
from answering (a full partition, a refused request, a node that dies) says nothing of the job, and
ends its dry runs at once: it goes as it was written.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from xmem_slurm import isolated
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import DryRunResult, order_to_json, result_from_json
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import SlurmError
from xmem_slurm.sandbox import linux
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.units import GIB, MIB

OWN_BYTES = GIB
"""Host memory that the step asks for beside the job's: for our own Python, which reads the traces
there."""
START_SECONDS = 30.0
"""Beside the budget: for Python to start from a cold network file system, and the sandbox
(`sandbox.SETUP_SECONDS`)."""
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL for an srun that is not waited for any more: it cancels its job
first."""

_START = "from xmem_slurm.dryrun.on_node import main; main()"
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""How the cluster is reached; other variables of Slurm's would be options, or make the dry run a
step of a job."""


def run(order: DryRunOrder, where: DryRuns) -> DryRunResult:
    """Have a step by srun run what is ordered, and return what came of it.

    Raises:
        SlurmError: it did not start in time, was refused, fails, or gave no answer.
    """
    immediate = max(1, int(where.wait_seconds))
    command = [
        "srun",
        "--job-name=xmem-dry-run",
        f"--immediate={immediate}",
        "--mpi=none",
        *words(order.budget, where),
    ]
    seconds, place = where.wait_seconds + order.budget.longest, named(where)
    printed = _step(
        [*command, *isolated.command(_START)], order_to_json(order).encode(), seconds, place
    )
    return result_from_json(printed.strip().rpartition(b"\n")[2], place)


def named(where: DryRuns) -> str:
    """Say where a dry run was."""
    return (
        f"the dry run in partition {where.partition}" if where.partition else "the dry run by Slurm"
    )


def words(budget: Budget, where: DryRuns) -> list[str]:
    """Return the options of srun and sbatch that ask for the place and the time of a dry run."""
    options: Mapping[str, object] = {
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
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def environment() -> dict[str, str]:
    """Return the environment for a command of Slurm's that brings a dry run to a node."""
    prefixes = ("SLURM_", "SRUN_", "SBATCH_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(prefixes) or name in _KEPT
    }
    return kept | {"XMEM_ACTIVE": "1"}  # a site's filter has no part in this


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
        printed, words = step.communicate(order, seconds + START_SECONDS)
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
    return printed
