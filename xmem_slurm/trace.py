"""The trace: what one GPU process asked of torch's caching allocator, in order.

Engines write it, the allocator model replays it. A file is one JSON object (gzip), written whole and renamed into place
by the probe, so that a reader sees either the last complete state of a process or nothing:

    schema_version  1
    state           how far the process came: "failed" before torch was imported (error says why), "importing",
                    "running" (it was killed), "steady" (steps no longer change the peak), "budget", "signal", "exit"
    error           the exception that ended the script, or null
    pid, argv, rank, world_size
    component       the component of a heterogeneous job that the process belongs to (XMEM_COMPONENT); else 0
    torch_version, cuda_version                      as torch says them; null for what is not there
    arch_list       what torch has kernels for: "sm_90", "compute_120"; earlier releases did not write it
    allocator_settings                               PYTORCH_CUDA_ALLOC_CONF as the job set it
    gpu             {name, capability, multiprocessors, total_bytes}: what the process was shown
    events          {action[], address[], size[], stream[]}: columns of torch's own memory history
                    (torch.cuda.memory._snapshot()["device_traces"][0]); sizes are the bytes that were asked for.
                    Steps that repeat others are left out. What they left at another address stands as "moved_from"
                    for each such allocation, then as "moved_to" for each, in the same order
    sites           {found, of}: `found` are [file, line, function, module], the lines of the script that allocated and
                    the modules that they did it for; `of` has one of their numbers for each allocation. Traces of the
                    profile engine and of earlier releases have none
    marks           [{kind, allocations, seconds}]: "backward", "backward_end", "step"; `allocations` is how many
                    allocations came before it
    tags            [{category, allocations, addresses[], names[]}]: the addresses that held this category at that
                    moment; `names` is empty, or has the name of the parameter for each of them, or ""
    recorded        {allocated_bytes, reserved_bytes, active_bytes, requested_bytes}: torch's own peaks
    place, lived    which GPU of the job that was (as CUDA_VISIBLE_DEVICES names it), and [first, last] moment on it in
                    seconds of one clock for all processes: what ran at once on one GPU adds up
    seen            what of the script ran (`Seen`); traces of the profile engine have none
    doubts          [{code, detail, count, share}]: what the dry run could not see
    peers           ranks that may need another amount than this one, as far as it can tell
    changed         what of the job was changed, to see what that would do (probe/_xmem/advice.py); else empty

Source of the event names: torch/csrc/cuda/Module.cpp, `trace_to_dict` (2.4 to 2.15).
"""

import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xmem_slurm import untrusted
from xmem_slurm.errors import NoEstimate

if TYPE_CHECKING:
    from xmem_slurm import tracefile

SCHEMA_VERSION = 1

_OF_NO_GPU = re.compile(
    r"(ModuleNotFound|FileNotFound|FileExists|IsADirectory|NotADirectory|Permission|Name|UnboundLocal|Syntax"
    r"|Indentation|Tab|EOF|Unicode\w+)Error\b|.*a dry run has no network"
)
"""Errors that no GPU has a part in: neither its kind nor the values on it. The last: probe/_xmem/process/network.py."""

_Entry = tuple[str, int, int, int]
"""(action, address, size, stream) of torch's memory history."""


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


class Site(NamedTuple):
    """Where an allocation was asked for: "" and 0 for what is not known.

    The line is the innermost one outside of torch, `module` the name of the nn.Module that was being called. Of what
    autograd allocated, they are those of the operator in the forward pass, and `function` is the backward node.
    """

    file: str
    line: int
    function: str
    module: str


NOWHERE = Site("", 0, "", "")


class Mark(NamedTuple):
    """A point between two allocations: "backward", "backward_end" or "step"."""

    kind: str
    allocations: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that the dry run could not see: a stable code, words for people, and how often it was met.

    `share` is its own price, a share of the peak, where that follows from what was seen; else the code has one.
    """

    code: str
    detail: str
    count: int
    share: float | None = None


OWN_SCRIPT = Doubt("own-script", "the job asks Slurm for its own script", 1)
"""No doubt about sizes: such a job is to find the script that was submitted, not a changed copy (`rewrite`)."""


class Loop(NamedTuple):
    """A loop of the script: its place, the iteration that it was in at the end, of how many; None: not known."""

    where: str
    done: int | None
    of: int | None


class Phase(NamedTuple):
    """A step, counted from 1, that was not like those before it, and how so."""

    step: int
    what: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What of a script ran (probe/_xmem/course/course.py).

    `end`: it came to its own end. `evaluation` is (batches, of how many) of the last one, None where there was none;
    `batches` the same of the last loop over training data, those that were only drawn included.
    """

    steps: int
    end: bool = False
    loops: Sequence[Loop] = ()
    evaluation: tuple[int, int | None] | None = None
    batches: tuple[int, int | None] | None = None
    checkpoints: int = 0
    phases: Sequence[Phase] = ()
    """Steps that differed from those before them, the first of them."""
    whole_until: int | None = None
    """How many of the trace's allocations come before the first step that is left out; None: none is."""


class File(NamedTuple):
    """A path that the dry run met, as it was then; the kinds are those of `probe/_xmem/process/files.py`."""

    kind: str
    size: int
    mtime_ns: int
    path: str


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
class Process:
    """The process that was watched, by either engine; the fields are those of the file."""

    argv: Sequence[str]
    rank: int
    world_size: int
    component: int
    state: str
    error: str | None
    torch_version: str
    cuda_version: str | None
    allocator_settings: str
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class Trace(Process):
    """One GPU process. `recorded` holds torch's own peaks, against which a replay can be checked."""

    allocations: Sequence[Allocation]
    events: Sequence[Event]
    marks: Sequence[Mark]
    doubts: Sequence[Doubt]
    recorded: dict[str, int]
    place: str = ""
    lived: tuple[float, float] = (0.0, 0.0)
    files: Sequence[File] = ()
    """What the Pythons of the whole dry run met (`read_files`); empty where that was not noted."""
    peers: Sequence[int] = ()
    """Ranks that may need another amount of memory than this one."""
    changed: str = ""
    """What of the job was changed for advice; empty where it ran as it is."""
    seen: Seen | None = None
    sites: Sequence[Site] = ()
    made_at: Sequence[int] = ()
    """The number of each allocation's site."""
    arch_list: Sequence[str] = ()
    """What the job's torch has kernels for (`kernels`); empty where that is not known."""

    def site_of(self, allocation: int) -> Site:
        """Return where an allocation was asked for."""
        return self.sites[self.made_at[allocation]] if self.made_at else NOWHERE

    @property
    def steps(self) -> int:
        """How many optimizer steps were seen; the marks are those of the steps that were kept."""
        if self.seen is not None:
            return self.seen.steps
        return sum(mark.kind == "step" for mark in self.marks)

    @property
    def failed(self) -> bool:
        """Whether the script stopped before two steps, with an error: too early to be an answer."""
        return self.error is not None and self.steps < 2

    @property
    def fails_on_any_gpu(self) -> bool:
        """Whether the script stopped by itself, and no GPU and no value on one can be why.

        Either it had not touched a GPU yet, or its error is one that has nothing to do with them.
        """
        untouched = self.state == "exit" and not self.recorded and not self.allocations
        return self.failed and (untouched or _OF_NO_GPU.match(self.error or "") is not None)

    @property
    def is_whole(self) -> bool:
        """Whether the run came to its end, or to where it only repeats itself."""
        return not self.growing and self.error is None

    def beside(self, other: "Trace") -> bool:
        """Whether the two processes were on one GPU at once. What was not noted was not."""
        at_once = max(self.lived[0], other.lived[0]) < min(self.lived[1], other.lived[1])
        return at_once and (self.component, self.place) == (other.component, other.place)

    @property
    def growing(self) -> bool:
        """Whether the run ended before its steps were seen to repeat: the real peak may be higher."""
        return self.state not in ("steady", "exit")


def fail_on_any_gpu(traces: Sequence[Trace]) -> bool:
    """Whether another dry run of the job, on whatever GPU and however, would end as this one: see `Trace`."""
    if any(trace.allocations and not trace.failed for trace in traces):
        return False
    failed = [trace for trace in traces if trace.failed]
    return bool(failed) and all(trace.fails_on_any_gpu for trace in failed)


def read(path: Path, allowance: untrusted.Allowance | None = None) -> Trace:
    """Read a trace file. The job could have written it, so its size is bounded, that of all by `allowance`.

    Raises:
        NoEstimate: the file is not a trace of this schema version.
    """
    from xmem_slurm import tracefile  # noqa: PLC0415 - what looks up a kept answer needs no pydantic

    try:
        raw = untrusted.read_json(path, allowance or untrusted.Allowance())
        if raw["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {raw['schema_version']!r:.9}, not {SCHEMA_VERSION}")
        return _from_file(tracefile.checked(raw, tracefile.TraceFile))
    except untrusted.DAMAGE as error:
        raise NoEstimate(f"{path}: not a trace: {error}") from error


MOST_LOGGED_BYTES = 64 << 20
"""Of files.log: 100 bytes a file, and 4,000 for each Python that imports torch."""
_LINE = re.compile(rb"([RDAWT]) (\d{1,18}) (-?\d{1,19}) (.*)", re.DOTALL)


def read_files(log: Path) -> list[File]:
    """Read what all Pythons of a dry run noted (form: probe/_xmem/process/files.py), the first time of each path first.

    What is no such note says that not all of them are there.
    """
    try:
        lines = untrusted.read(log, MOST_LOGGED_BYTES).split(b"\0")[:-1]
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        return [File("T", 0, 0, "")]
    noted = [_LINE.fullmatch(line) for line in lines]
    return [File(n[1].decode(), int(n[2]), int(n[3]), os.fsdecode(n[4])) if n else File("T", 0, 0, "") for n in noted]


def process_fields(found: "tracefile.TraceFile | tracefile.ProfileFile") -> dict[str, Any]:
    """Return the fields of a `Process` from a file."""
    return {each.name: getattr(found, each.name) for each in fields(Process)} | {"gpu": Gpu(**dict(found.gpu))}


def _from_file(raw: "tracefile.TraceFile") -> Trace:
    columns = raw.events
    history = list(zip(columns.action, columns.address, columns.size, columns.stream, strict=True))
    requests, events, freed_at = _number(history)
    marks = [Mark(mark.kind, mark.allocations) for mark in raw.marks]
    tagged, names = _resolve_tags(history, raw.tags)
    allocations = [
        Allocation(size, stream, tagged.get(number) or _by_phase(number, freed_at.get(number), marks))
        for number, (size, stream) in enumerate(requests)
    ]
    sites, made_at = _sites(raw.sites, len(requests), names)
    return Trace(
        **process_fields(raw),
        allocations=allocations,
        events=events,
        marks=marks,
        doubts=[Doubt(**dict(doubt)) for doubt in raw.doubts],
        recorded=raw.recorded,
        seen=_seen(raw.seen),
        place=raw.place,
        lived=raw.lived,
        peers=raw.peers,
        changed=raw.changed,
        sites=sites,
        made_at=made_at,
        arch_list=raw.arch_list,
    )


def _seen(raw: Any) -> Seen | None:
    if raw is None:
        return None
    loops = [Loop(**dict(each)) for each in raw.loops]
    return Seen(**{**dict(raw), "loops": loops, "phases": [Phase(**dict(each)) for each in raw.phases]})


def _number(history: list[_Entry]) -> tuple[list[tuple[int, int]], list[Event], dict[int, int]]:
    """Give each allocation its number, in place of an address that is used again and again.

    Returns the requests (size, stream), the events on them, and for each freed allocation how many had been made by
    then. The device of a dry run has no limit, so segments are only given back when the job says empty_cache().
    """
    requests: list[tuple[int, int]] = []
    events: list[Event] = []
    freed_at: dict[int, int] = {}
    live: dict[int, int] = {}
    moving: deque[int] = deque()
    streams: dict[int, int] = {0: 0}
    releasing = False
    for action, address, size, stream in history:
        if action in ("segment_free", "segment_unmap"):
            if not releasing:
                events.append(Event(Op.EMPTY_CACHE, -1))
            releasing = True
            continue
        if action == "alloc":
            live[address] = len(requests)
            events.append(Event(Op.ALLOC, len(requests)))
            requests.append((size, streams.setdefault(stream, len(streams))))
        elif action in ("moved_from", "moved_to"):
            _move(action, address, live, moving)
        elif address in live and action == "free_requested":
            freed_at[live[address]] = len(requests)
            events.append(Event(Op.FREE_REQUESTED, live[address]))
        elif address in live and action == "free_completed":
            events.append(Event(Op.FREE_COMPLETED, live.pop(address)))
        releasing = False
    return requests, events, freed_at


def _move(action: str, address: int, live: dict[int, int], moving: deque[int]) -> None:
    """Take an allocation from its old address, or put the first of those that were taken to its new one."""
    if action == "moved_from":
        moving.append(live.pop(address))
    else:
        live[address] = moving.popleft()


def _resolve_tags(history: list[_Entry], tags: Sequence[Any]) -> tuple[dict[int, Category], dict[int, str]]:
    """Turn "these addresses held PARAM after n allocations" into categories, and names, of allocation numbers.

    The first tag of an allocation stands: a gradient that becomes optimizer state was allocated as a gradient.
    """
    categories: dict[int, Category] = {}
    names: dict[int, str] = {}
    pending = sorted(tags, key=lambda tag: tag.allocations)[::-1]
    live: dict[int, int] = {}
    moving: deque[int] = deque()
    made = 0

    def settle(until: int | None) -> None:
        while pending and (until is None or pending[-1].allocations < until):
            tag = pending.pop()
            for address, name in zip(tag.addresses, tag.names or repeat(""), strict=False):
                if address in live:
                    categories.setdefault(live[address], Category(tag.category))
                    if name:
                        names.setdefault(live[address], name)

    for action, address, _, _ in history:
        if action == "alloc":
            settle(made + 1)
            live[address] = made
            made += 1
        elif action in ("moved_from", "moved_to"):
            _move(action, address, live, moving)
    settle(None)
    return categories, names


def _sites(raw: Any, count: int, names: dict[int, str]) -> tuple[list[Site], list[int]]:
    """Return the sites, and the number of that of each of `count` allocations: those in `names` have these modules."""
    made_at = raw.of
    if not made_at:
        return [], []
    if len(made_at) != count or max(made_at) >= len(raw.found):
        raise ValueError("it has other sites than allocations")
    sites = [Site(*each) for each in raw.found]
    renamed: dict[Site, int] = {}
    for allocation, name in names.items():
        site = sites[made_at[allocation]]._replace(module=name)
        made_at[allocation] = len(sites) + renamed.setdefault(site, len(renamed))
    return [*sites, *renamed], made_at


def _by_phase(number: int, freed_at: int | None, marks: list[Mark]) -> Category:
    """Say what an allocation without a tag is, from when it was made and freed.

    In the words of torch's mem_tracker: made in the forward pass and alive when the backward pass begins, an
    activation; never freed, something that the libraries or the job keep (OTH); the rest is temporary.
    """
    if freed_at is None:
        return Category.OTH
    index = bisect_right(marks, number, key=lambda mark: mark.allocations)
    following = marks[index] if index < len(marks) else None
    if following is not None and following.kind == "backward" and freed_at > following.allocations:
        return Category.ACT
    return Category.TEMP
