"""What torchrun, deepspeed and mpirun do in a dry run: they become their first rank, or those that
are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from xmem_slurm.dryrun.shims.workers import at_once, become, chosen_of, find, not_found, note

NOT_HERE = "no-launcher"
"""The file among the traces with the name of a launcher that is not on PATH: its shim does without,
and the job itself cannot."""


def mpirun(name: str, arguments: Sequence[str]) -> None:
    """Run the first process of `mpirun [options] command`, or `mpiexec`, as its `name` is: the
    command is the first word that is a program.
    """
    if find(name) is None:
        Path(os.environ["XMEM_TRACE_DIR"], NOT_HERE).write_text(name, encoding="utf-8")
    size, previous = os.environ.get("SLURM_NTASKS", "1"), ""
    not_programs = (
        "-map-by",
        "--map-by",
        "-rank-by",
        "--rank-by",
        "-bind-to",
        "--bind-to",
    )  # by node, by core
    for index, word in enumerate(arguments):
        if previous in ("-n", "-np", "--np", "-c"):
            size = word
        elif previous not in not_programs and not word.startswith("-") and find(word) is not None:
            chosen = chosen_of(int(size), range(int(size)))
            at_once([partial(_start_mpi, rank, int(size), arguments[index:]) for rank in chosen])
        previous = word
    note("mpirun: no program found on its command line")
    raise SystemExit(1)


def _start_mpi(rank: int, size: int, command: Sequence[str]) -> NoReturn:
    local_size = max(1, size // int(os.environ.get("SLURM_NNODES", "1")))
    os.environ.update(
        OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_LOCAL_RANK=str(rank % local_size)
    )
    os.environ.update(OMPI_COMM_WORLD_SIZE=str(size), OMPI_COMM_WORLD_LOCAL_SIZE=str(local_size))
    os.environ.update(XMEM_TASK=f"{rank}/{size}", XMEM_NODE=str(rank // local_size))
    become(command)


_TORCHRUN_FLAGS = {
    "--standalone",
    "--no-python",
    "--run-path",
    "-m",
    "--module",
    "--virtual-local-rank",
}


def torchrun(arguments: Sequence[str]) -> None:
    """Run `torchrun [options] script` as its first worker would be run."""
    as_written, index = _options(arguments, _TORCHRUN_FLAGS)
    options = {name.replace("_", "-"): value for name, value in as_written.items()}
    per_node = _processes(options.get("--nproc-per-node", "1"))
    nodes = _nodes(options.get("--nnodes", "1"))
    interpreter = _interpreter_of("torchrun")
    python = [] if "--no-python" in options else [interpreter, "-u"]
    module = ["-m"] if options.keys() & {"-m", "--module"} else []
    node = _node(options.get("--node-rank"), nodes)
    chosen = chosen_of(per_node * nodes, range(node * per_node, (node + 1) * per_node))
    os.environ.update(
        TORCHELASTIC_RUN_ID=options.get("--rdzv-id", "none"),
        ROLE_NAME=options.get("--role", "default"),
    )
    os.environ.update(
        TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS=options.get("--max-restarts", "0")
    )
    places, command = _places([per_node] * nodes), [*python, *module, *arguments[index:]]
    at_once([partial(_start_rank, places[rank], command) for rank in chosen])


_DEEPSPEED_FLAGS = {
    *(
        "--module",
        "--no_python",
        "--no_local_rank",
        "--force_multi",
        "--save_pid",
        "--no_ssh",
        "--no_ssh_check",
    ),
    *("-q", "--quiet", "--elastic_training", "--bind_cores_to_rank"),
}


def deepspeed(arguments: Sequence[str]) -> None:
    """Run `deepspeed [options] script` as its first worker would be run.

    Source of the options and of `--local_rank`: deepspeed/launcher/runner.py and launch.py.
    """
    options, index = _options(arguments, _DEEPSPEED_FLAGS)
    number = options.get("--num_gpus", options.get("--num_accelerators", "gpu"))
    per_node, nodes = _processes(number), _nodes(options.get("--num_nodes", "1:1000000"))
    gpus = _chosen_gpus(options)
    places = _places([len(numbers) for numbers in gpus] or [per_node] * nodes)
    interpreter = _interpreter_of("deepspeed")
    python = [] if "--no_python" in options else [interpreter, "-u"]
    module = ["-m"] if "--module" in options else []
    commands = []
    for rank in chosen_of(len(places), range(len(places))):
        place = places[rank]
        local_rank = [] if "--no_local_rank" in options else [f"--local_rank={place.local}"]
        words = [*python, *module, arguments[index], *local_rank, *arguments[index + 1 :]]
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus[place.node]))} if gpus else {}
        commands.append(partial(_start_rank, place, words, visible))
    at_once(commands)


def _chosen_gpus(options: Mapping[str, str]) -> list[list[int]]:
    """Return which GPUs of each node --include or --exclude leaves; [] where neither is given.

    The text is "host[:gpu,gpu]@host...", without GPUs: all of the host's. Of nodes that have none
    left there is no list. Source: `main` and `parse_resource_filter` of DeepSpeed 0.19
    (deepspeed/launcher/runner.py), which refuse what is refused here.
    """
    included = options.get("--include", options.get("-i", ""))
    excluded = options.get("--exclude", options.get("-e", ""))
    if not included and not excluded:
        return []
    if included and excluded:
        _refuse("include_str and exclude_str are mutually exclusive.")
    if options.keys() & {"--num_nodes", "--num_gpus", "--num_accelerators"}:
        _refuse("Cannot specify num_nodes/gpus with include/exclude")
    every, named = set(range(int(os.environ["XMEM_DEVICE_COUNT"]))), dict[str, set[int]]()
    for part in (included or excluded).split("@"):
        host, _, gpus = part.partition(":")
        named.setdefault(host, set()).update(int(gpu) for gpu in gpus.split(",") if gpus)
    for host, unknown in ((host, gpu) for host, gpus in named.items() for gpu in gpus - every):
        _refuse(f"No slot '{unknown}' specified on host '{host}'")
    if included:
        nodes = [gpus or every for gpus in named.values()]
    else:
        unnamed = 0 if "localhost" in named else _nodes("1:1000000") - len(named)
        nodes = [every - gpus if gpus else set[int]() for gpus in named.values()]
        nodes += [every] * unnamed
    remaining = [sorted(gpus) for gpus in nodes if gpus]
    if not remaining:
        _refuse("no GPU is left by --exclude")
    return remaining


def _refuse(why: str) -> NoReturn:
    """End as DeepSpeed does where it does not start anything."""
    note(f"deepspeed: {why}")
    raise SystemExit(1)


def _options(arguments: Sequence[str], flags: set[str]) -> tuple[dict[str, str], int]:
    """Return the options at the beginning, and where the script stands; all but `flags` have a
    value.

    torchrun takes an option with `-` and `_` alike, so flags are compared without that difference.
    """
    plain = {flag.replace("_", "-") for flag in flags}
    index, options = 0, dict[str, str]()
    while index < len(arguments) and arguments[index].startswith("-"):
        name, has_value, value = arguments[index].partition("=")
        if not has_value and name.replace("_", "-") not in plain:
            index += 1
            value = arguments[index] if index < len(arguments) else ""
        options[name] = value
        index += 1
    return options, index


def _processes(text: str) -> int:
    """Return how many workers a node gets: a number, or one for each GPU that the job sees."""
    if text.isdecimal():
        return int(text)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",")) if visible else int(os.environ["XMEM_DEVICE_COUNT"])


def _nodes(text: str) -> int:
    """Return how many nodes take part: a number, or as many of a range as the job has."""
    minimum, _, maximum = text.partition(":")
    return min(max(int(minimum), int(os.environ.get("SLURM_NNODES", "1"))), int(maximum or minimum))


def _node(node_rank: str | None, nodes: int) -> int:
    """Return which of the nodes this launcher is on: what it was told, else the task that it is."""
    task, _, tasks = os.environ.get("XMEM_TASK", "0/1").partition("/")
    node = 0
    if node_rank is not None and node_rank.isdecimal():
        node = int(node_rank)
    elif int(tasks) == nodes:  # one launcher a node
        node = int(task)
    return min(node, nodes - 1)


class _RankPlace(NamedTuple):
    """Where a rank is: which of the processes of its node, and on which of the nodes."""

    rank: int
    world: int
    local: int
    per_node: int
    node: int
    nodes: int


def _places(processes: Sequence[int]) -> list[_RankPlace]:
    """Return the place of each rank, with so many processes on each node."""
    of_nodes = [(node, local) for node, count in enumerate(processes) for local in range(count)]
    return [
        _RankPlace(rank, len(of_nodes), local, processes[node], node, len(processes))
        for rank, (node, local) in enumerate(of_nodes)
    ]


def _start_rank(
    place: _RankPlace,
    command: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> NoReturn:
    """Become this rank, with such variables and what torch.distributed's `env://` reads."""
    rank, world, local, per_node, node, nodes = map(str, place)
    os.environ.update(RANK=rank, ROLE_RANK=rank, LOCAL_RANK=local, GROUP_RANK=node)
    os.environ.update(WORLD_SIZE=world, ROLE_WORLD_SIZE=world)
    os.environ.update(LOCAL_WORLD_SIZE=per_node, GROUP_WORLD_SIZE=nodes, XMEM_NODE=node)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", **variables)
    become(command)


def _interpreter_of(command: str) -> str:
    """Return the Python that the real `command` would run with: the one of its first line.

    It is a package's own program, which stands beside that Python: where there is none, there is
    none on a node, either.
    """
    program = find(command)
    if program is None:
        not_found(command)
    first = Path(program).read_bytes().split(b"\n", 1)[0].decode(errors="replace")
    interpreter = first.removeprefix("#!").split()[0] if first.startswith("#!") else ""
    return interpreter if "python" in interpreter else "python"
