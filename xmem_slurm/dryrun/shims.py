"""What launchers and Slurm's commands do in a dry run: start one rank here, and never talk to the cluster.

The runner puts a folder first on PATH in which each of these names starts this file. It runs with the wrapper's Python,
isolated (-I -S), and replaces itself by the command that it finds, in the job's own environment.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

_PACKAGE = Path(__file__).resolve().parents[2]


class _Step(NamedTuple):
    """What srun starts in one component of the job: the first of so many tasks; an ordinary job is its own only one."""

    component: int
    given: dict[str, str]
    command: Sequence[str]

    def variable(self, name: str) -> str | None:
        """Return what Slurm says of this component; where it says nothing, srun goes by the first component's."""
        return os.environ.get(f"{name}_HET_GROUP_{self.component}", os.environ.get(name))

    @property
    def nodes(self) -> int:
        given = self.given.get("nodes", "").partition("-")[0]
        nodes = _number(given) or _number(self.variable("SLURM_JOB_NUM_NODES")) or 1
        return min(nodes, _number(self.given.get("ntasks")) or nodes)

    @property
    def tasks(self) -> int:
        tasks = _number(self.given.get("ntasks")) or self.nodes * (_number(self.given.get("ntasks-per-node")) or 0)
        return tasks or max(self.nodes, _number(self.variable("SLURM_NTASKS")) or 1)


_OF_COMPONENT = ("CPUS_PER_NODE", "NAME", "NODELIST", "NUM_NODES", "PARTITION")
"""The SLURM_JOB_* variables that a step has of its own component; the ids are the first one's (seen in 22.05)."""


def srun(arguments: Sequence[str]) -> None:
    """Run the first task of `srun [options] command`, here, with the variables of the first of so many tasks.

    In a heterogeneous job that is the first task of each component that takes part, all at once: of those that
    `--het-group` names, else of the first; of `command : command`, one each. Tasks are counted through in the order of
    the components (srun(1), --het-group; seen so in 22.05).
    """
    steps = sorted(_steps(arguments), key=lambda step: step.component)
    if len(steps) == 1:
        _start(steps[0], steps)
    children = []
    for step in steps:
        child = os.fork()
        if child == 0:
            _start(step, steps)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    raise SystemExit(max([code if code >= 0 else 128 - code for code in codes], default=0))


def _steps(arguments: Sequence[str]) -> list[_Step]:
    """Read srun's command line; nothing where it has no command."""
    sys.path.insert(0, str(_PACKAGE))
    from xmem_slurm.slurm import options  # noqa: PLC0415 - only this shim needs it

    image = next((word for word in arguments if word.startswith("--container-image")), None)
    if image is not None:  # an option of the pyxis plugin
        _note(f"the script runs a container (srun {image}), and a dry run does not see inside")
        raise SystemExit(1)
    found = []
    colons = [at for at, word in enumerate(arguments) if word == ":"]
    for index, (start, end) in enumerate(zip([-1, *colons], [*colons, len(arguments)], strict=True)):
        words = arguments[start + 1 : end]
        occurrences, command = options.scan(words, options.srun_table())
        given = {each.name: each.value or "" for each in occurrences}
        group = given.get("het-group") or given.get("pack-group") or str(index)
        if command < len(words):
            found += [_Step(component, given, words[command:]) for component in _numbers(group)]
    return found


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as "0,2-3"."""
    ends = [part.partition("-") for part in text.split(",")]
    return [number for first, _, last in ends for number in range(int(first), int(last or first) + 1)]


def _start(step: _Step, steps: Sequence[_Step]) -> NoReturn:
    """Become the first task of one of the steps that srun starts together."""
    nodes, tasks = sum(each.nodes for each in steps), sum(each.tasks for each in steps)
    before = [(each.nodes, each.tasks) for each in steps if each.component < step.component]
    per_node = -(-step.tasks // step.nodes)
    of_task = _number(step.given.get("gpus-per-task") or step.variable("SLURM_GPUS_PER_TASK"))
    of_job = {name: step.variable(name) for name in (f"SLURM_JOB_{each}" for each in _OF_COMPONENT)}
    os.environ.update({name: value for name, value in of_job.items() if value is not None})
    os.environ.update(dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_LOCALID"), "0"))
    os.environ["SLURM_NODEID"] = str(sum(nodes for nodes, _ in before))
    os.environ["SLURM_PROCID"] = str(sum(tasks for _, tasks in before))
    os.environ.update(dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(tasks)))
    os.environ.update(dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(nodes)))
    os.environ["SLURM_NTASKS_PER_NODE"] = str(per_node)
    count = os.environ.get(f"XMEM_DEVICE_COUNT_HET_GROUP_{step.component}")
    if count is not None:
        os.environ.update(XMEM_COMPONENT=str(step.component), XMEM_DEVICE_COUNT=count, SLURM_GPUS_ON_NODE=count)
        _see_gpus(int(count))
    if of_task:  # Slurm shows such a task its own GPUs only (srun(1), --gpus-per-task)
        _see_gpus(of_task)
    _become(step.command)


def _see_gpus(count: int) -> None:
    """Set what Slurm tells a process of its GPUs; of none it tells nothing, and what was there before stays."""
    if count:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["GPU_DEVICE_ORDINAL"] = ",".join(map(str, range(count)))
    else:
        os.environ.pop("SLURM_GPUS_ON_NODE", None)


def _number(text: str | None) -> int | None:
    """Return the number at the end of `text` ("4", "h100:2"), or None."""
    last = (text or "").rpartition(":")[2]
    return int(last) if last.isdecimal() else None


def mpirun(arguments: Sequence[str]) -> None:
    """Run the first process of `mpirun [options] command`, here: the command is the first word that is a program."""
    size, previous = os.environ.get("SLURM_NTASKS", "1"), ""
    not_programs = ("-map-by", "--map-by", "-rank-by", "--rank-by", "-bind-to", "--bind-to")  # by node, by core
    for index, word in enumerate(arguments):
        if previous in ("-n", "-np", "--np", "-c"):
            size = word
        elif previous not in not_programs and not word.startswith("-") and _find(word) is not None:
            here = max(1, int(size) // int(os.environ.get("SLURM_NNODES", "1")))
            os.environ.update(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
            os.environ.update(OMPI_COMM_WORLD_SIZE=size, OMPI_COMM_WORLD_LOCAL_SIZE=str(here))
            _become(arguments[index:])
        previous = word
    _note("mpirun: no program found on its command line")
    raise SystemExit(1)


_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--run-path", "-m", "--module", "--virtual-local-rank"}


def torchrun(arguments: Sequence[str]) -> None:
    """Run `torchrun [options] script` as its first worker would be run."""
    index, given = 0, {}
    while index < len(arguments) and arguments[index].startswith("-"):
        name, has_value, value = arguments[index].replace("_", "-").partition("=")
        if not has_value and name not in _TORCHRUN_FLAGS:
            index += 1
            value = arguments[index] if index < len(arguments) else ""
        given[name] = value
        index += 1
    _be_first_of(_processes(given.get("--nproc-per-node", "1")), _nodes(given.get("--nnodes", "1")))
    python = [] if "--no-python" in given else [_interpreter_of("torchrun"), "-u"]
    module = ["-m"] if given.keys() & {"-m", "--module"} else []
    _become([*python, *module, *arguments[index:]])


_DEEPSPEED_FLAGS = {
    *("--module", "--no_python", "--no_local_rank", "--force_multi", "--save_pid", "--no_ssh", "--no_ssh_check"),
    *("--quiet", "--elastic_training", "--bind_cores_to_rank"),
}


def deepspeed(arguments: Sequence[str]) -> None:
    """Run `deepspeed [options] script` as its first worker would be run.

    Source of the options and of `--local_rank`: deepspeed/launcher/runner.py and launch.py.
    """
    index, given = 0, {}
    while index < len(arguments) and arguments[index].startswith("-"):
        name, has_value, value = arguments[index].partition("=")
        if not has_value and name not in _DEEPSPEED_FLAGS:
            index += 1
            value = arguments[index] if index < len(arguments) else ""
        given[name] = value
        index += 1
    _be_first_of(_processes(given.get("--num_gpus", "gpu")), _nodes(given.get("--num_nodes", "1:1000000")))
    python = [] if "--no_python" in given else [_interpreter_of("deepspeed"), "-u"]
    module = ["-m"] if "--module" in given else []
    rank = [] if "--no_local_rank" in given else ["--local_rank=0"]
    _become([*python, *module, arguments[index], *rank, *arguments[index + 1 :]])


def _processes(text: str) -> int:
    """Return how many workers a node gets: a number, or one for each GPU that the job sees."""
    if text.isdecimal():
        return int(text)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",")) if visible else int(os.environ["XMEM_DEVICE_COUNT"])


def _nodes(text: str) -> int:
    """Return how many nodes take part: a number, or as many of a range as the job has."""
    least, _, most = text.partition(":")
    return min(max(int(least), int(os.environ.get("SLURM_NNODES", "1"))), int(most or least))


def _be_first_of(processes: int, nodes: int) -> None:
    """Set what torch.distributed's `env://` reads, for rank 0; the other ranks are not started."""
    os.environ.update(dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"))
    os.environ.update(dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(processes * nodes)))
    os.environ.update(LOCAL_WORLD_SIZE=str(processes), GROUP_WORLD_SIZE=str(nodes))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")


def nvidia_smi(arguments: Sequence[str]) -> None:
    """Answer as a machine with the dry run's GPU would: a query, a list (-L), else a short table."""
    name, count = os.environ["XMEM_DEVICE_NAME"], int(os.environ["XMEM_DEVICE_COUNT"])
    total = f"{int(os.environ['XMEM_DEVICE_TOTAL_BYTES']) >> 20} MiB"
    options = dict(argument.partition("=")[::2] for argument in arguments)
    query, form = options.get("--query-gpu"), options.get("--format", "")
    if any(option.startswith("--query-") and option != "--query-gpu" for option in options):
        return  # processes, clocks, ...: there are none
    uuids = [f"GPU-{index:08x}-0000-0000-0000-000000000000" for index in range(count)]
    if query is None:
        for index, uuid in enumerate(uuids):
            listed = f"GPU {index}: {name} (UUID: {uuid})"
            print(listed if "-L" in options else f"| {index:3}  {name} | 0MiB / {total.replace(' ', '')} |")  # noqa: T201
        return
    fields = [field.strip() for field in query.split(",")]
    if "noheader" not in form:
        print(", ".join(f"{field} [MiB]" if field.startswith("memory.") else field for field in fields))  # noqa: T201
    for index, uuid in enumerate(uuids):
        known = {"name": name, "gpu_name": name, "count": str(count), "index": str(index), "uuid": uuid}
        known |= {"memory.total": total, "memory.free": total, "memory.used": "0 MiB", "utilization.gpu": "0 %"}
        known |= {"compute_cap": os.environ["XMEM_DEVICE_CAPABILITY"]}
        values = [known.get(field, "[N/A]") for field in fields]
        if "nounits" in form:
            values = [value.removesuffix(" MiB").removesuffix(" %") for value in values]
        print(", ".join(values))  # noqa: T201


def scontrol(arguments: Sequence[str]) -> None:
    """Expand the job's host list; every other question has no answer here."""
    if list(arguments[:2]) == ["show", "hostnames"]:
        print(os.environ.get("SLURM_JOB_NODELIST", "localhost"))  # noqa: T201


def sbatch(_arguments: Sequence[str]) -> None:
    """Submit nothing; say what a script expects to read."""
    _note("the job submits another job: that one was not looked at")
    print("Submitted batch job 0")  # noqa: T201


CONTAINERS = ("apptainer", "singularity", "enroot", "podman", "shifter")


def container(name: str, arguments: Sequence[str]) -> None:
    """Run a container if this machine can; its Python is reached only where it takes PYTHONPATH and our folders in."""
    _note(f"the script runs a container ({name} {' '.join(arguments[:2])}...), and a dry run does not see inside")
    found = _find(name)
    if found is None:
        sys.exit(f"{name}: command not found")
    os.execv(found, [name, *arguments])


def nothing(_arguments: Sequence[str]) -> None:
    """Do nothing, well."""


SHIMS: dict[str, Callable[[Sequence[str]], None]] = {
    "srun": srun,
    "mpirun": mpirun,
    "mpiexec": mpirun,
    "torchrun": torchrun,
    "deepspeed": deepspeed,
    "nvidia-smi": nvidia_smi,
    "scontrol": scontrol,
    "sbatch": sbatch,
    "scancel": nothing,
    "squeue": nothing,
    "sacct": nothing,
    "sinfo": nothing,
    **{name: partial(container, name) for name in CONTAINERS},
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


def _become(words: Sequence[str]) -> NoReturn:
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
