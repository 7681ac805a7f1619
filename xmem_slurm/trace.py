"""The trace: what one GPU process asked of torch's caching allocator, in order.

Engines write it, the allocator model replays it. A file is one JSON object (gzip), written whole and renamed into place
by the probe, so that a reader sees either the last complete state of a process or nothing:

    schema_version  1
    state           "importing", "running" (the process died, or still runs), "exit", "steady", "budget", "signal"
    error           the exception that ended the script, or null
    pid, argv, rank, world_size
    torch_version, cuda_version, cudnn_version      as torch says them; null for what is not there
    allocator_settings                               PYTORCH_CUDA_ALLOC_CONF as the job set it
    gpu             {name, capability, multiprocessors, total_bytes}: what the process was shown
    events          {action[], address[], size[], stream[]}: columns of torch's own memory history
                    (torch.cuda.memory._snapshot()["device_traces"][0]); sizes are the bytes that were asked for
    marks           [{kind, allocations, seconds}]: "backward", "backward_end", "step"; `allocations` is how many
                    allocations came before it
    tags            [{category, allocations, addresses[]}]: the addresses that held this category at that moment
    recorded        {allocated_bytes, reserved_bytes, active_bytes, requested_bytes}: torch's own peaks
    doubts          [{code, detail, count}]: what the dry run could not see

Source of the event names: torch/csrc/cuda/Module.cpp, `trace_to_dict` (2.4 to 2.15).
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA_VERSION = 1


class Op(IntEnum):
    """What happens to an allocation, in torch's words."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """The last reference went; the block waits for other streams if it was used there (record_stream)."""
    FREE_COMPLETED = 2
    """The block is in its pool again."""
    EMPTY_CACHE = 3
    """torch.cuda.empty_cache(); the allocation number is -1."""


class Category(StrEnum):
    """What a block is for; the words of torch.distributed._tools.mem_tracker."""

    PARAM = "PARAM"
    BUFFER = "BUFFER"
    GRAD = "GRAD"
    ACT = "ACT"
    TEMP = "TEMP"
    OPT = "OPT"
    OTH = "OTH"


class Allocation(NamedTuple):
    """One request to the allocator: `size` in bytes as asked for; `stream` a small number, 0 the default stream."""

    size: int
    stream: int
    category: Category


class Mark(NamedTuple):
    """A point between two allocations: "backward", "backward_end" or "step"."""

    kind: str
    allocations: int


class Doubt(NamedTuple):
    """Something that the dry run could not see: a stable code, words for people, and how often it was met."""

    code: str
    detail: str
    count: int


class Event(NamedTuple):
    """One operation on allocation number `allocation` (its place in `Trace.allocations`)."""

    op: int
    allocation: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that the process was shown."""

    name: str
    capability: str
    multiprocessors: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One GPU process. `recorded` holds torch's own peaks, against which a replay can be checked."""

    rank: int
    world_size: int
    state: str
    error: str | None
    torch_version: str
    cuda_version: str | None
    allocator_settings: str
    gpu: Gpu
    allocations: Sequence[Allocation]
    events: Sequence[Event]
    marks: Sequence[Mark]
    doubts: Sequence[Doubt]
    recorded: dict[str, int]

    @property
    def steps(self) -> int:
        """How many optimizer steps were seen."""
        return sum(mark.kind == "step" for mark in self.marks)
