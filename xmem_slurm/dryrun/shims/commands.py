"""What launchers and Slurm's commands do in a dry run: start ranks here, and never talk to the
cluster or the network.

The runner puts a folder first on PATH in which each of these names starts `main`. It runs with the
wrapper's Python, isolated (-I -S), and replaces itself by the command that it finds, in the job's
own environment. In a container it is the image's Python, 3.9 or newer: what is imported here keeps
to that.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from xmem_slurm.dryrun.containers.runtimes import ROOT_ONLY, RUNTIMES
from xmem_slurm.dryrun.shims import fetchers, slurm_queries
from xmem_slurm.dryrun.shims.launchers import deepspeed, mpirun, torchrun
from xmem_slurm.dryrun.shims.srun import srun
from xmem_slurm.dryrun.shims.workers import note


def nvidia_smi(arguments: Sequence[str]) -> None:
    """Answer as a machine with the dry run's GPU would: a query, a list (-L), else a short
    table.
    """
    name, count = os.environ["XMEM_DEVICE_NAME"], int(os.environ["XMEM_DEVICE_COUNT"])
    total = f"{int(os.environ['XMEM_DEVICE_TOTAL_BYTES']) >> 20} MiB"
    options = dict(argument.partition("=")[::2] for argument in arguments)
    query, form = options.get("--query-gpu"), options.get("--format", "")
    if any(option.startswith("--query-") and option != "--query-gpu" for option in options):
        return  # processes, clocks, ...: there are none
    uuids = [f"GPU-{index:08x}-0000-0000-0000-000000000000" for index in range(count)]
    if query is None:
        for index, uuid in enumerate(uuids):
            if "-L" in options:
                line = f"GPU {index}: {name} (UUID: {uuid})"
            else:
                line = f"| {index:3}  {name} | 0MiB / {total.replace(' ', '')} |"
            print(line)  # noqa: T201
        return
    fields = [field.strip() for field in query.split(",")]
    if "noheader" not in form:
        heads = [f"{field} [MiB]" if field.startswith("memory.") else field for field in fields]
        print(", ".join(heads))  # noqa: T201
    for index, uuid in enumerate(uuids):
        values_by_field = {
            "name": name,
            "gpu_name": name,
            "count": str(count),
            "index": str(index),
            "uuid": uuid,
        }
        values_by_field |= {
            "memory.total": total,
            "memory.free": total,
            "memory.used": "0 MiB",
            "utilization.gpu": "0 %",
        }
        values_by_field |= {"compute_cap": os.environ["XMEM_DEVICE_CAPABILITY"]}
        values = [values_by_field.get(field, "[N/A]") for field in fields]
        if "nounits" in form:
            values = [value.removesuffix(" MiB").removesuffix(" %") for value in values]
        print(", ".join(values))  # noqa: T201


def sbatch(_arguments: Sequence[str]) -> None:
    """Submit nothing; say what a script expects to read."""
    note("the job submits another job: that one was not examined")
    print("Submitted batch job 0")  # noqa: T201


def container(name: str, arguments: Sequence[str]) -> None:
    """Start the job's container, as its runtime does."""
    if "XMEM_MOUNTS" in os.environ:
        note(
            f"the script runs a container ({name}) in a container, and the dry run cannot go inside"
        )
        sys.exit(f"{name}: a dry run starts no container in a container")
    from xmem_slurm.dryrun.containers import shim  # noqa: PLC0415 - not in the Python of an image

    shim.container(name, arguments)


def nothing(_arguments: Sequence[str]) -> None:
    """Do nothing, well."""


CONTAINERS = (*RUNTIMES, *ROOT_ONLY)
SHIMS: dict[str, Callable[[Sequence[str]], None]] = {
    "srun": srun,
    **{name: partial(mpirun, name) for name in ("mpirun", "mpiexec")},
    "torchrun": torchrun,
    "deepspeed": deepspeed,
    "nvidia-smi": nvidia_smi,
    "scontrol": slurm_queries.scontrol,
    "sbatch": sbatch,
    "squeue": slurm_queries.squeue,
    **dict.fromkeys(("sacct", "scancel", "sinfo"), nothing),
    **{name: partial(container, name) for name in CONTAINERS},
    **{name: partial(fetchers.fetch, name) for name in fetchers.FETCHERS},
}


def main() -> None:
    """Be the command that this process was started as."""
    SHIMS[sys.argv[1]](sys.argv[2:])
