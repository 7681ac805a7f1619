"""How one process runs as one rank of many: what would wait for the other ranks goes on without them.

torch's ProcessGroupNCCL is the job's own, on the stand-in NCCL, with groups of the true size: what DDP, FSDP, tensor
parallelism and meshes allocate follows from rank and world size alone. Three things would wait for ranks that do not
run, and are replaced here: the stores through which ranks meet, gloo (by torch's own group without peers, in which a
gather gives this rank's part for everyone's), and what starts one process for each GPU (it starts the first one).
Python objects that ranks send each other are copied, as what travels through a GPU cannot be unpickled here; the few
bytes of GPU memory through which they would go are not seen.
"""

import copy
import functools
import os
import subprocess
import sys
import time

import _xmem_alive

_UNIQUE_ID = b"\x07" * 128
"""What a key holds that only another rank would have set; as an NCCL unique id, 128 bytes (nccl.h), it is valid."""


_WATCHDOG_SECONDS = 0.12
"""ProcessGroupNCCL's watchdog looks every 100 ms for collectives that are over, and lets go of their tensors
(kWatchdogThreadSleepMillis in ProcessGroupNCCL.hpp, 2.4 to 2.15)."""

_left = []
"""(rank, world size) of the groups of all ranks that were destroyed."""


def install(torch):
    """Let this process be one rank of many. Called once torch is imported, before the job has anything of it."""
    if not torch.distributed.is_available():
        return
    # ProcessGroupNCCL's monitor thread asks the store for the state of other ranks (ProcessGroupNCCL.hpp, 2.4 to 2.15).
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    _meet_alone(torch)
    _talk_alone(torch)
    _exchange_objects_alone(torch)
    _remember_on_leaving(torch)
    _let_watchdog_pass(torch)
    _start_the_first_only(torch)


def rank_and_size(torch):
    """Return (rank, world size) as torch.distributed has or last had them, else as the launcher set them, or (0, 1)."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if _left:
        return _left[-1]
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


_stores = []
"""torch's C++ holds a store that was written in Python only as long as Python does."""


class _Values:
    """A torch.distributed.Store of one process: nothing in it is waited for. Methods and arguments are that class's."""

    def __init__(self, host_name="localhost", port=0, *_args, **_kwargs):
        super().__init__()
        self.host, self.port, self._values = host_name, port, {}
        _stores.append(self)

    def set(self, key, value):
        self._values[key] = _as_bytes(value)

    def get(self, key):
        return self._values.get(key, _UNIQUE_ID)

    def compare_set(self, key, expected, desired):
        if self._values.get(key, b"") == _as_bytes(expected):
            self.set(key, desired)
        return self._values.get(key, _as_bytes(expected))

    def add(self, key, amount):
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = b"%d" % total
        return total

    def check(self, keys):
        return all(key in self._values for key in keys)

    def wait(self, *_args):
        pass

    def delete_key(self, key):
        return self._values.pop(key, None) is not None

    def num_keys(self):
        return len(self._values)

    def set_timeout(self, timeout):
        pass

    def has_extended_api(self):
        return False


def _as_bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


def doubts():
    """Return what one rank cannot say of the others, in the form of a trace's doubts."""
    stage = sys.modules.get("torch.distributed.pipelining.stage")
    if stage is None or not _xmem_alive.instances(stage._PipelineStageBase):
        return []
    return [{"code": "pipeline", "detail": "the stages of other ranks were not run", "count": 1}]


def _let_watchdog_pass(torch):
    """Give the watchdog its turn: here a step takes no time, and the tensors of many steps would live at once."""

    def after_step(_optimizer, _args, _kwargs):
        if rank_and_size(torch)[1] > 1:
            time.sleep(_WATCHDOG_SECONDS)

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)


def _meet_alone(torch):
    """Stores that would wait for other processes (TCPStore, FileStore) have everything at once."""
    store = type("LoneStore", (_Values, torch.distributed.Store), {})
    for module in (torch.distributed, sys.modules["torch.distributed.rendezvous"]):
        module.TCPStore = module.FileStore = store


def _talk_alone(torch):
    """Groups of CPU tensors (gloo) are torch's own group without peers, under gloo's name."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    without_peers = torch._C._distributed_c10d.FakeProcessGroup
    create = getattr(without_peers, "_create_internal", without_peers)  # torch 2.8 and older have the constructor only
    if not hasattr(c10d, "ProcessGroupGloo"):
        return

    class Named(type):
        def __instancecheck__(cls, thing):
            return isinstance(thing, without_peers)

    class ProcessGroupGloo(metaclass=Named):
        def __new__(cls, _store, rank, size, *_args, **_kwargs):
            options = [without_peers.Options()] if create is not without_peers else []
            return create(rank, size, *options)

    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        c10d.barrier(group=group)

    without_peers._set_sequence_number_for_group = lambda _group: None  # gloo counts its collectives
    c10d.ProcessGroupGloo = torch.distributed.ProcessGroupGloo = ProcessGroupGloo
    c10d.monitored_barrier = torch.distributed.monitored_barrier = monitored_barrier


def _exchange_objects_alone(torch):
    """Collectives of Python objects: what this rank gives is what everyone gives; what another gives stays as it is."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]

    def all_gather_object(object_list, obj, group=None):
        if not c10d._rank_not_in_group(group):
            object_list[:] = [copy.deepcopy(obj) for _ in object_list]

    def gather_object(obj, object_gather_list=None, *_args, **_kwargs):
        if object_gather_list:
            all_gather_object(object_gather_list, obj)

    def broadcast_object_list(object_list, *_args, **_kwargs):
        pass

    def scatter_object_list(output, scatter_object_input_list=None, *_args, **_kwargs):
        if scatter_object_input_list:
            output[0] = scatter_object_input_list[0]

    for function in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list):
        setattr(c10d, function.__name__, function)
        setattr(torch.distributed, function.__name__, function)


def _remember_on_leaving(torch):
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args, **kwargs):
        if c10d.is_initialized():
            _left.append((c10d.get_rank(), c10d.get_world_size()))
        destroy(*args, **kwargs)

    c10d.destroy_process_group = torch.distributed.destroy_process_group = destroy_process_group


def _start_the_first_only(torch):
    """What would start a process for each GPU (torchrun, torch.multiprocessing.spawn) starts rank 0 alone."""
    import torch.distributed.launcher.api as launcher

    launcher.launch_agent = _launch_first_worker
    spawn = sys.modules["torch.multiprocessing.spawn"]
    start = spawn.start_processes

    def start_processes(fn, args=(), nprocs=1, *rest, **kwargs):
        return start(fn, args, 1 if nprocs == torch.cuda.device_count() else nprocs, *rest, **kwargs)

    spawn.start_processes = torch.multiprocessing.start_processes = start_processes


def _launch_first_worker(config, entrypoint, args):
    """Stand for torch.distributed.launcher.api.launch_agent: run rank 0, with the environment that its agent sets.

    Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers` (2.4 to 2.15).
    """
    per_node = config.nproc_per_node
    nodes = min(max(config.min_nodes, int(os.environ.get("SLURM_NNODES") or 1)), config.max_nodes)
    host, _, port = (config.rdzv_endpoint or "").rpartition(":")
    first = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), "0")
    os.environ.update(
        first,
        LOCAL_WORLD_SIZE=str(per_node),
        WORLD_SIZE=str(per_node * nodes),
        ROLE_WORLD_SIZE=str(per_node * nodes),
        GROUP_WORLD_SIZE=str(nodes),
        ROLE_NAME=config.role,
        MASTER_ADDR=host or "127.0.0.1",
        MASTER_PORT=port if port.isdecimal() and port != "0" else "29500",
        TORCHELASTIC_MAX_RESTARTS=str(config.max_restarts),
        TORCHELASTIC_RUN_ID=config.run_id,
    )
    if callable(entrypoint):
        return {0: entrypoint(*args)}
    code = subprocess.call([entrypoint, *args])
    if code:
        raise SystemExit(code)
    return {0: None}
