"""What starts a process for each GPU from within Python starts the first one, or the ranks that are
asked for.

These are torch.distributed.run, which `accelerate launch` uses too, and
torch.multiprocessing.spawn. What is asked for stands in XMEM_RUN_RANKS, as for the launchers of the
batch script (`xmem_slurm/dryrun/shims/workers.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from _xmem.annotations import Function


def launch_agent(_launch: Function, _api: ModuleType) -> Function:
    """What takes the place of torch's launcher, which is imported late: it needs packages that
    torch does not.
    """
    return _launch_workers


def start_processes(start: Function, _owner: object) -> Function:
    """Around what torch.multiprocessing.spawn starts its processes with."""

    def start_processes(
        fn: Function, args: tuple[Any, ...] = (), nprocs: int = 1, *options: Any, **kwargs: Any
    ) -> Any:
        if nprocs != sys.modules["torch"].cuda.device_count():
            return start(fn, args, nprocs, *options, **kwargs)
        os.environ.setdefault("XMEM_LAUNCHER", str(os.getpid()))
        task, tasks = _task()
        chosen = _chosen_of(nprocs * tasks, range(task * nprocs, (task + 1) * nprocs))
        return start(
            _Chosen(fn, [rank - task * nprocs for rank in chosen]),
            args,
            len(chosen),
            *options,
            **kwargs,
        )

    return start_processes


class _Chosen:
    """A function of a process's number that is given the numbers of those that were chosen."""

    def __init__(self, function: Function, numbers: list[int]) -> None:
        self._function, self._numbers = function, numbers

    def __call__(self, index: int, *args: Any) -> None:
        self._function(self._numbers[index], *args)


def _task() -> tuple[int, int]:
    """Return (task, tasks) of srun or mpirun that this process runs in."""
    task, _, tasks = os.environ.get("XMEM_TASK", "0/1").partition("/")
    return int(task), int(tasks)


def _chosen_of(total: int, own_ranks: range) -> list[int]:
    ranks, _, world = os.environ.get("XMEM_RUN_RANKS", "").partition("/")
    wanted = {int(rank) * total // int(world) for rank in ranks.split(",")} if world else set()
    return sorted(wanted & set(own_ranks)) or [own_ranks[0]]


def _worst(codes: Iterable[int]) -> int:
    """Return the code of the one that ended worst, as a shell has it: one that a signal ended has
    128 and more.
    """
    return max(code if code >= 0 else 128 - code for code in codes)


def _launch_workers(config: Any, entrypoint: Any, args: Sequence[Any]) -> dict[int, Any]:
    """Stand for torch.distributed.launcher.api.launch_agent: run ranks with the environment that
    its agent sets.

    Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers` (2.4 to
    2.15).
    """
    from torch.distributed.elastic.utils import macros

    local_world = config.nproc_per_node
    nodes = min(max(config.min_nodes, int(os.environ.get("SLURM_NNODES") or 1)), config.max_nodes)
    task, tasks = _task()
    node = config.rdzv_configs.get("rank", -1)  # --node-rank
    if node <= 0:  # not given, or the first: of one task for each node, the task's number
        node = task if tasks == nodes else 0
    node = min(node, nodes - 1)
    host, _, port = (config.rdzv_endpoint or "").rpartition(":")
    os.environ.setdefault("XMEM_LAUNCHER", str(os.getpid()))
    environ = {
        **os.environ,
        "LOCAL_WORLD_SIZE": str(local_world),
        "WORLD_SIZE": str(local_world * nodes),
        "ROLE_WORLD_SIZE": str(local_world * nodes),
        "GROUP_WORLD_SIZE": str(nodes),
        "GROUP_RANK": str(node),
        "ROLE_NAME": config.role,
        "MASTER_ADDR": host or "127.0.0.1",
        "MASTER_PORT": port if port.isdecimal() and port != "0" else "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        "XMEM_NODE": str(node),
    }
    chosen = _chosen_of(local_world * nodes, range(node * local_world, (node + 1) * local_world))
    ranked = [
        {**environ, "RANK": str(r), "ROLE_RANK": str(r), "LOCAL_RANK": str(r % local_world)}
        for r in chosen
    ]
    if callable(entrypoint):  # in this process, so one rank only
        os.environ.update(ranked[0])
        return {0: entrypoint(*args)}
    substitute = macros.substitute  # torch.distributed.launch passes "--local-rank=${local_rank}"
    workers = [
        subprocess.Popen(
            [entrypoint, *substitute(args, worker_environ["LOCAL_RANK"])], env=worker_environ
        )
        for worker_environ in ranked
    ]
    code = _worst([worker.wait() for worker in workers])
    if code:
        raise SystemExit(code)
    return {0: None}
