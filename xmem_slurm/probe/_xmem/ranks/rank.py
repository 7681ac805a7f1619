"""How one process runs as one rank of many: what would wait for the other ranks goes on without them.

torch's ProcessGroupNCCL is the job's own, on the stand-in NCCL, with groups of the true size: what DDP, FSDP, tensor
parallelism and meshes allocate follows from rank and world size alone. What would wait for ranks that do not run is
replaced: the stores through which ranks meet, gloo (by torch's own group without peers), what starts one process for
each GPU (`ranks/launch`), what goes from one rank to another (`ranks/peers`), or to and from all (`ranks/collectives`),
what checkpoints gather (`ranks/checkpoints`).
"""

import contextlib
import functools
import os
import sys
import time

from _xmem.process import alive
from _xmem.ranks import checkpoints, launch, mail, peers

_UNIQUE_ID = b"\x07" * 128
"""What a key holds that only another rank would have set; as an NCCL unique id, 128 bytes (nccl.h), it is valid."""


_WATCHDOG = "pt_nccl_watchdg"
"""The thread of ProcessGroupNCCL (its name there, 2.6 to 2.11) that looks every 100 ms for collectives that are over,
and lets go of their tensors (kWatchdogThreadSleepMillis in ProcessGroupNCCL.hpp)."""
_WATCHDOG_SECONDS = 0.12
"""How long that takes where the thread has no name, and..."""
_MOST_SECONDS = 2.0
"""...at the most on a machine with too much to do."""

_left = []
"""(rank, world size) of the groups of all ranks that were destroyed."""


def install(torch, leave):
    """Let this process be one rank of many, which `leave` ends as steady; called before the job has any of torch."""
    if not torch.distributed.is_available():
        return
    mail.leave.append(leave)
    # ProcessGroupNCCL's monitor thread asks the store for the state of other ranks (ProcessGroupNCCL.hpp, 2.4 to 2.15).
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    _meet_alone(torch)
    _talk_alone(torch)
    peers.install(torch)
    checkpoints.install()
    _remember_on_leaving(torch)
    _let_watchdog_pass(torch)
    alive.watch(torch.nn.parallel.DistributedDataParallel)
    launch.install(torch)


def rank_and_size(torch):
    """Return (rank, world size) as torch.distributed has or last had them, else as the launcher set them, or (0, 1)."""
    return _joined(torch) or (int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1))


def _joined(torch):
    """Return the same of a process that has met the other ranks, else None: a data loader's worker has not."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _left[-1] if _left else None


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
    """Return what is known to be missing, in the form of a trace's doubts."""
    found, missing = [], int(os.environ.get("XMEM_TASKS_NOT_RUN") or 0)
    if missing:
        detail = "%d more tasks share the GPUs than a dry run starts at once" % missing
        found.append({"code": "tasks", "detail": detail, "count": missing})
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if alive.any_made(getattr(parallel, "DistributedDataParallel", None)):
        found.append({"code": "ddp-buckets", "detail": "DDP's first buckets", "count": 1})
    return found


def all_steady(torch):
    """Say that this rank's steps only repeat themselves; whether so do those of all ranks that run with it."""
    return _say("steady", torch)


def ended(torch):
    """Let the ranks that run with this one know that it tells them nothing more."""
    _say("ended", torch)


def _say(state, torch):
    rank, world = _joined(torch) or (0, 1)
    others = mail.running(world)
    if others:
        mail.say(state, rank)
    return mail.all_said(others)


def _let_watchdog_pass(torch):
    """Give the watchdog its turn: here a step takes no time, and the tensors of many steps would live at once."""

    def after_step(_optimizer, _args, _kwargs):
        if rank_and_size(torch)[1] > 1:
            _wait_for_watchdog()

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)


def _wait_for_watchdog():
    """Wait until every watchdog has gone to sleep twice: between, it has looked once at all that was over by now."""
    before = _sleeps()
    if not before:
        time.sleep(_WATCHDOG_SECONDS)
        return
    deadline = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < deadline:
        now = _sleeps()
        if all(now.get(thread, count + 2) >= count + 2 for thread, count in before.items()):
            return
        time.sleep(_WATCHDOG_SECONDS / 10)


def _sleeps():
    """Return how often each watchdog of this process has gone to sleep, by its thread (proc(5))."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open("/proc/self/task/%s/status" % thread) as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            if status["Name"] == _WATCHDOG:
                found[thread] = int(status["voluntary_ctxt_switches"])
    return found


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


def _remember_on_leaving(torch):
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args, **kwargs):
        if c10d.is_initialized():
            _left.append((c10d.get_rank(), c10d.get_world_size()))
        destroy(*args, **kwargs)

    c10d.destroy_process_group = torch.distributed.destroy_process_group = destroy_process_group
