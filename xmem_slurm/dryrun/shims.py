"""What launchers and Slurm's commands do in a dry run: start one rank here, and never talk to the cluster.

The runner puts a folder first on PATH in which each of these names starts this file. It runs with the wrapper's Python,
isolated (-I -S), and replaces itself by the command that it finds, in the job's own environment.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def srun(arguments: Sequence[str]) -> None:
    """Run the first task of `srun [options] command`, here."""
    sys.path.insert(0, str(_PACKAGE))
    from xmem_slurm.slurm import options  # noqa: PLC0415 - only this shim needs it

    _, command = options.scan(arguments, options.srun_table())
    if command < len(arguments):
        os.environ.update(SLURM_STEP_ID="0", SLURM_STEPID="0", SLURM_PROCID="0", SLURM_LOCALID="0")
        _become(arguments[command:])


def mpirun(arguments: Sequence[str]) -> None:
    """Run the first process of `mpirun [options] command`, here: the command is the first word that is a program."""
    for index, word in enumerate(arguments):
        if not word.startswith("-") and _find(word) is not None:
            os.environ.update(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
            _become(arguments[index:])
    _note("mpirun: no program found on its command line")
    raise SystemExit(1)


_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--run-path", "-m", "--module"}


def torchrun(arguments: Sequence[str]) -> None:
    """Run `torchrun [options] script` as its only worker would be; more than one worker is not run yet."""
    index, given = 0, {}
    while index < len(arguments) and arguments[index].startswith("-"):
        name, has_value, value = arguments[index].replace("_", "-").partition("=")
        if not has_value and name not in _TORCHRUN_FLAGS:
            index += 1
            value = arguments[index] if index < len(arguments) else ""
        given[name] = value
        index += 1
    processes, nodes = given.get("--nproc-per-node", "1"), given.get("--nnodes", "1")
    if (processes, nodes.split(":")[-1]) != ("1", "1"):
        _note(f"torchrun starts {processes} processes on {nodes} nodes; only one process can be estimated yet")
        raise SystemExit(1)
    one = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    one |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    os.environ.update(one, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    python = [] if "--no-python" in given else [_interpreter_of("torchrun"), "-u"]
    module = ["-m"] if given.keys() & {"-m", "--module"} else []
    _become([*python, *module, *arguments[index:]])


def nvidia_smi(arguments: Sequence[str]) -> None:
    """Answer as a machine with the dry run's GPU would."""
    name, count = os.environ["XMEM_DEVICE_NAME"], int(os.environ["XMEM_DEVICE_COUNT"])
    total = int(os.environ["XMEM_DEVICE_TOTAL_BYTES"]) >> 20
    answers = {"name": name, "gpu_name": name, "count": str(count), "index": "{index}", "compute_cap": ""}
    answers["compute_cap"] = os.environ["XMEM_DEVICE_CAPABILITY"]
    answers |= {"memory.total": f"{total} MiB", "memory.free": f"{total} MiB", "memory.used": "0 MiB"}
    query = next((a.partition("=")[2] for a in arguments if a.startswith("--query-gpu=")), None)
    plain = any("nounits" in a for a in arguments)
    for index in range(count):
        if query is None:
            print(f"GPU {index}: {name} (UUID: GPU-{index:08x}-0000-0000-0000-000000000000)")  # noqa: T201
            continue
        fields = [answers.get(field.strip(), "[N/A]").replace("{index}", str(index)) for field in query.split(",")]
        print(", ".join(field.removesuffix(" MiB") if plain else field for field in fields))  # noqa: T201


def scontrol(arguments: Sequence[str]) -> None:
    """Expand the job's host list; every other question has no answer here."""
    if list(arguments[:2]) == ["show", "hostnames"]:
        print(os.environ.get("SLURM_JOB_NODELIST", "localhost"))  # noqa: T201


def sbatch(_arguments: Sequence[str]) -> None:
    """Submit nothing; say what a script expects to read."""
    _note("the job submits another job: that one was not looked at")
    print("Submitted batch job 0")  # noqa: T201


def nothing(_arguments: Sequence[str]) -> None:
    """Do nothing, well."""


SHIMS: dict[str, Callable[[Sequence[str]], None]] = {
    "srun": srun,
    "mpirun": mpirun,
    "mpiexec": mpirun,
    "torchrun": torchrun,
    "nvidia-smi": nvidia_smi,
    "scontrol": scontrol,
    "sbatch": sbatch,
    "scancel": nothing,
    "squeue": nothing,
    "sacct": nothing,
    "sinfo": nothing,
}


def _note(text: str) -> None:
    """Leave a line for the runner: why an estimate is missing or doubtful."""
    with (Path(os.environ["XMEM_TRACE_DIR"]) / "notes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(text) + "\n")


def _find(command: str) -> str | None:
    """Find a program as the shell would, past our own folder."""
    if "/" in command:
        return command if os.access(command, os.X_OK) and not Path(command).is_dir() else None
    for folder in os.environ["PATH"].split(os.pathsep):
        candidate = Path(folder or ".") / command
        if folder != os.environ["XMEM_SHIMS"] and os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    return None


def _become(words: Sequence[str]) -> None:
    if words[0] in SHIMS and words[0] not in ("srun", "sbatch"):
        SHIMS[words[0]](words[1:])
        raise SystemExit(0)
    found = _find(words[0])
    if found is None:
        sys.exit(f"{words[0]}: command not found")
    os.execv(found, [*words])


def _interpreter_of(command: str) -> str:
    """Return the Python that the real `command` would run with: the one of its first line."""
    found = _find(command)
    first = Path(found).read_bytes().split(b"\n", 1)[0].decode(errors="replace") if found else ""
    interpreter = first.removeprefix("#!").split()[0] if first.startswith("#!") else ""
    return interpreter if "python" in interpreter else "python"


if __name__ == "__main__":
    SHIMS[sys.argv[1]](sys.argv[2:])
