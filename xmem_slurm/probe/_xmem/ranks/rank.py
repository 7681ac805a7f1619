"""How one process runs as one rank of many: what would wait for the other ranks goes on without
them.

torch's ProcessGroupNCCL is the job's own, on the stand-in NCCL, with groups of the true size: what
DDP, FSDP, tensor parallelism and meshes allocate follows from rank and world size alone. What would
wait for ranks that do not run is replaced: the stores through which ranks meet, gloo (by torch's
own group without peers), what starts one process for each GPU (`ranks/launch`), what goes from one
rank to another (`ranks/peers`), or to and from all (`ranks/collectives`), what checkpoints gather
(`ranks/checkpoints`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from _xmem.process import alive
from _xmem.ranks import mail
from _xmem.ranks.collectives import Collectives
from _xmem.ranks.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from _xmem.annotations import Function, HasValues, Note, Optimizer, ProcessGroup

_UNIQUE_ID = b"\x07" * 128
"""What a key holds that only another rank would have set; as an NCCL unique id, 128 bytes (nccl.h),
it is valid."""


_WATCHDOG = "pt_nccl_watchdg"
"""The thread of ProcessGroupNCCL (its name there, 2.6 to 2.11) that looks every 100 ms for
collectives that are over, and lets go of their tensors (kWatchdogThreadSleepMillis in
ProcessGroupNCCL.hpp)."""
_WATCHDOG_SECONDS = 0.12
"""How long that takes where the thread has no name, and..."""
_MOST_SECONDS = 2.0
"""...at the most on a machine with too much to do."""
_WAITS = 4
"""Steps after which it is waited for in any case: the first make gradients, optimizer states,
buckets."""


class LoneRank:
    """This process as one rank of many, which `leave` ends as steady.

    `values` has the values of its tensors, `level` says how many bytes are allocated.
    """

    def __init__(
        self,
        torch: ModuleType,
        leave: Callable[[], None],
        values: HasValues,
        level: Callable[[], int],
    ) -> None:
        self._torch, self._level = torch, level
        self._waits, self._at_rest = _WAITS, 0
        self._bucket_bytes = 0  # of the gradients of all that was trained with DDP at once
        # (rank, world size) of the groups of all ranks that were destroyed
        self._destroyed_groups: list[tuple[int, int]] = []
        # torch's C++ holds a store that was written in Python only as long as Python does
        self._stores: list[Any] = []
        self.collectives = Collectives(torch, values)
        self.peers = Peers(torch, mail.Mail(leave), self.collectives, values)

    def begin(self) -> None:
        """Be ready before the job has any of torch.

        ProcessGroupNCCL's monitor thread would ask the store for the state of other ranks
        (ProcessGroupNCCL.hpp, 2.4 to 2.15).
        """
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
        self.collectives.begin()

    def rank_and_size(self) -> tuple[int, int]:
        """Return (rank, world size) as torch.distributed has or last had them, else as the launcher
        set them.
        """
        return self._joined() or rank_and_size()

    def _joined(self) -> tuple[int, int] | None:
        """Return the same of a process that has met the other ranks, else None: a data loader's
        worker has not.
        """
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return self._destroyed_groups[-1] if self._destroyed_groups else None

    def all_steady(self) -> bool:
        """Say that this rank's steps only repeat themselves; whether so do those of all ranks that
        run with it.
        """
        return self._say("steady")

    def ended(self) -> bool:
        """Let the ranks that run with this one know that it tells them nothing more."""
        self._catch_up()
        return self._say("ended")

    def _catch_up(self) -> None:
        """Have all that was launched be over, as on a GPU, before torch waits for its groups'
        collectives.
        """
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _say(self, state: str) -> bool:
        rank, world = self._joined() or (0, 1)
        running = mail.running(world)
        if running:
            mail.say(state, rank)
        return mail.all_said(running)

    def unlike(self) -> list[int]:
        """Return the ranks that this one cannot stand for: what they hold differs, or they may find
        no GPU.
        """
        return sorted({*self.peers.differing(), *self._without_gpu()})

    def _without_gpu(self) -> list[int]:
        """Return the first rank of this node that has no GPU of its number, where this one sees too
        few for all.

        So it is where a script names them (CUDA_VISIBLE_DEVICES=0,1) for more ranks than that; and
        where each rank is shown its own alone, which running that one tells.
        """
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        rank = int(os.environ.get("LOCAL_RANK") or 0)
        shown = (
            self._torch.cuda.device_count() if self._torch.cuda.is_initialized() else local_world
        )
        return [self.rank_and_size()[0] - rank + shown] if shown < local_world else []

    def doubt(self, note: Note) -> None:
        """Say what is known to be missing."""
        missing = int(os.environ.get("XMEM_TASKS_NOT_RUN") or 0)
        if missing:
            note(
                "tasks",
                "%d more tasks share the GPUs than a dry run starts at once" % missing,
                missing,
            )
        if self._bucket_bytes:
            note("ddp-buckets", "DDP's first buckets", self._bucket_bytes)

    def _first_buckets(self) -> int:
        """Return the bytes in buckets that are made anew after a first step
        (`should_rebuild_buckets` in reducer.hpp).

        So it is unless parameters may be unused, and the graph be another each time.
        """
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        return sum(
            parameter.nbytes
            for model in alive.of_class(getattr(parallel, "DistributedDataParallel", None))
            if model.static_graph or not model.find_unused_parameters
            for parameter in model.module.parameters()
            if parameter.requires_grad
        )

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    @functools.cached_property
    def _store_class(self) -> type:
        kept = self._stores
        base: Any = self._torch.distributed.Store

        class LoneStore(_Values, base):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                kept.append(self)

        return LoneStore

    def store(self, _store: type, _owner: object) -> type:
        """Stores that would wait for other processes (TCPStore, FileStore) have everything at
        once.
        """
        return self._store_class

    @functools.cached_property
    def _gloo_class(self) -> type:
        """What stands for gloo's group, and for which torch's group without peers is an instance of
        it.
        """
        without_peers = self._torch._C._distributed_c10d.FakeProcessGroup
        # torch 2.8 and older have the constructor only
        create = getattr(without_peers, "_create_internal", without_peers)
        # gloo counts its collectives
        without_peers._set_sequence_number_for_group = lambda _group: None

        class Named(type):
            def __instancecheck__(cls, thing: object) -> bool:
                return isinstance(thing, without_peers)

        class ProcessGroupGloo(metaclass=Named):
            def __new__(
                cls, _store: object, rank: int, size: int, *_args: Any, **_kwargs: Any
            ) -> Any:
                options = [without_peers.Options()] if create is not without_peers else []
                return create(rank, size, *options)

        return ProcessGroupGloo

    def gloo(self, _group: type, _owner: object) -> type:
        """Groups of CPU tensors (gloo) are torch's own group without peers, under gloo's name."""
        return self._gloo_class

    def monitored_barrier(self, _barrier: Function, _owner: object) -> Function:
        """A barrier of gloo's that would name the ranks that are missing."""
        c10d = sys.modules["torch.distributed.distributed_c10d"]

        def monitored_barrier(
            group: ProcessGroup | None = None,
            timeout: object = None,
            wait_all_ranks: bool = False,
        ) -> None:
            c10d.barrier(group=group)

        return monitored_barrier

    def remembered(self, destroy: Function, _owner: object) -> Function:
        """Around destroy_process_group: rank and size hold on, and nothing is left for it to wait
        for.
        """
        c10d = sys.modules["torch.distributed.distributed_c10d"]

        @functools.wraps(destroy)
        def destroy_process_group(*args: Any, **kwargs: Any) -> None:
            if c10d.is_initialized():
                self._destroyed_groups.append((c10d.get_rank(), c10d.get_world_size()))
            self._catch_up()
            destroy(*args, **kwargs)

        return destroy_process_group

    def let_watchdog_pass(self, register: Function, _owner: object) -> Function:
        """Give the watchdog its turn: here a step takes no time, and the tensors of many steps
        would live at once.

        Where no more is allocated than after it last had its turn, there are none that it would let
        go of. On a GPU it is a matter of milliseconds whether DDP's first buckets are still there
        while the next are made: here they never are, and what they may take is noted.
        """

        def after_step(
            _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]
        ) -> None:
            if self._joined() is not None and (self._waits or self._level() > self._at_rest):
                self._bucket_bytes = max(self._bucket_bytes, self._first_buckets())
                if self._waits and self._bucket_bytes:
                    self._catch_up()
                self._waits = max(self._waits - 1, 0)
                _wait_for_watchdog()
                self._at_rest = self._level()

        register(after_step)
        return register


def rank_and_size() -> tuple[int, int]:
    """Return (rank, world size) as the launcher set them, or (0, 1)."""
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


class _Values:
    """A torch.distributed.Store of one process: nothing in it is waited for. Methods and arguments
    are that class's.
    """

    _values: dict[str, bytes]

    def __init__(
        self, host_name: str = "localhost", port: int = 0, *_args: Any, **_kwargs: Any
    ) -> None:
        super().__init__()
        self.host, self.port, self._values = host_name, port, {}

    def set(self, key: str, value: Any) -> None:
        self._values[key] = _as_bytes(value)

    def get(self, key: str) -> bytes:
        return self._values.get(key, _UNIQUE_ID)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        if self._values.get(key, b"") == _as_bytes(expected):
            self.set(key, desired)
        return self._values.get(key, _as_bytes(expected))

    def add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = b"%d" % total
        return total

    def check(self, keys: Iterable[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, *_args: Any) -> None:
        pass

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def set_timeout(self, timeout: object) -> None:
        pass

    def has_extended_api(self) -> bool:
        return False


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _wait_for_watchdog() -> None:
    """Wait until every watchdog has gone to sleep twice: between, it has looked once at all that
    was over by now.
    """
    before = _sleeps()
    if not before:
        time.sleep(_WATCHDOG_SECONDS)
        return
    deadline = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < deadline:
        sleeps = _sleeps()
        if all(sleeps.get(thread, count + 2) >= count + 2 for thread, count in before.items()):
            return
        time.sleep(_WATCHDOG_SECONDS / 10)


def _sleeps() -> dict[str, int]:
    """Return how often each watchdog of this process has gone to sleep, by its thread (proc(5))."""
    sleeps = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open("/proc/self/task/%s/status" % thread) as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            if status["Name"] == _WATCHDOG:
                sleeps[thread] = int(status["voluntary_ctxt_switches"])
    return sleeps
