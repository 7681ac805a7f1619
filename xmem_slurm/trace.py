"""The trace: what one GPU process asked of torch's caching allocator, in order.

Engines write it, the allocator model replays it. A file is one JSON object (gzip), written whole
and renamed into place by the probe, so that a reader sees either the last complete state of a
process or nothing:

    schema_version  1
    state           how far the process came: "failed" before torch was imported (error says why),
                    "importing", "running" (it was killed), "steady" (steps no longer change the
                    peak), "budget", "signal", "exit"
    error           the exception that ended the script, or null
    pid, argv, rank, world_size
    python          the interpreter's path (sys.executable); earlier releases did not write it
    nodes           how many nodes the ranks are on, as the launcher or Slurm says; earlier releases
                    did not write it
    component       the component of a heterogeneous job that the process belongs to
                    (XMEM_COMPONENT); else 0
    torch_version, cuda_version                      as torch says them; null for what is not there
    arch_list       what torch has kernels for: "sm_90", "compute_120"; earlier releases did not
                    write it
    allocator_settings                               PYTORCH_CUDA_ALLOC_CONF as the job set it
    gpu             {name, capability, multiprocessors, total_bytes}: what the process was shown
    events          {action[], address[], size[], stream[]}: columns of torch's own memory history
                    (torch.cuda.memory._snapshot()["device_traces"][0]); sizes are the bytes that
                    were asked for. Steps that repeat others are left out, and calls that were
                    skipped stand as the events of those before, at addresses of their own. What
                    steps left at another address stands as "moved_from" for each such allocation,
                    then as "moved_to" for each, in the same order. "left_out" says that what stands
                    in the `size` rows before it came `address` times more, and is left out there
    sites           {found, called_from, of}: `found` are [file, line, function, module], the lines
                    of the script that allocated and the modules that they did it for, and the lines
                    that called those; `called_from` has the number of the caller of each, 0 where
                    there is none (earlier releases did not write it); `of` has one of their numbers
                    for each allocation. Traces of the profile engine have none
    marks           [{kind, allocations, seconds}]: "backward", "backward_end", "step"; behind the
                    first step also "evaluation" and "training", where the script switches its model
                    to it, and "checkpoint" where one is saved; `allocations` is how many
                    allocations came before it
    tags            [{category, allocations, addresses[], names[]}]: the addresses that held this
                    category at that moment; `names` is empty, or has the name of the parameter for
                    each of them, or ""
    recorded        {allocated_bytes, reserved_bytes, active_bytes, requested_bytes}: torch's own
                    peaks
    between_resets  [the same up to each reset of them by the script (reset_peak_memory_stats), and
                    since the last]
    place, lived    which GPU of the job that was (as CUDA_VISIBLE_DEVICES names it), and [first,
                    last] moment on it in seconds of one clock for all processes: what ran at once
                    on one GPU adds up
    seen            what of the script ran (`Seen`); traces of the profile engine have none
    bounds          [[size, most]]: a request of so many bytes is for a library's buffer, which may
                    have to have `most` on the GPU (device/src/cudart/bounds.c); earlier releases
                    did not write it
    doubts          [{code, detail, count, share}]: what the dry run could not see
                    (`xmem_slurm.doubts`)
    peers           ranks that may need another amount than this one, as far as it can tell
    work            {launches, backwards, allocated, rows}: what the GPU was given to do from one
                    optimizer step to the next, as the stand-ins counted it
                    (device/src/cudart/work.c), and the bytes allocated in it (earlier releases did
                    not write those); traces of the profile engine have none
    changed         what of the job was changed, to see what that would do (probe/_xmem/advice.py);
                    else empty
    training        whose trainer it is, and how it trains (`Training`); earlier releases did not
                    write it
    host_bytes      host memory of no file that the process held, with the workers of its data
                    loaders (`probe/_xmem/record/host`), the most that was found; 0 of none, of the
                    profile engine, and of earlier releases
    mallocs_before_launch
                    how often torch's allocator took memory from the device before any kernel was
                    launched, which moves the driver's addresses (device/src/cudart/addresses.c);
                    null: not known

Source of the event names: torch/csrc/cuda/Module.cpp, `trace_to_dict` (2.4 to 2.15).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated, NamedTuple

from xmem_slurm.checked import Checked, Count, Seconds, Text
from xmem_slurm.doubts import Doubt
from xmem_slurm.work import StepCounts

SCHEMA_VERSION = 1

LEAST_STEPS = 2
"""A process that made fewer has shown nothing of how it trains."""
CRASH = "a crash or a kill"
"""Stands for the type where a process ended without an exception, and without a word."""

_OF_NO_GPU = frozenset(
    f"{name}Error"
    for name in (
        *(
            "ModuleNotFound",
            "FileNotFound",
            "FileExists",
            "IsADirectory",
            "NotADirectory",
            "Permission",
            "EOF",
        ),
        *("Name", "UnboundLocal", "Syntax", "Indentation", "Tab"),
        *("UnicodeDecode", "UnicodeEncode", "UnicodeTranslate"),
    )
)
"""Exceptions that no GPU has a part in: neither its kind nor the values on it."""
MISSPELT = "a misspelt command"
"""Said of one that no machine has."""
NOT_ON_PATH = "a launcher that is not on PATH"
"""Said of one that comes with the Python of a job's environment."""
_WAITS_FOR_INPUT = "EOFError: EOF when reading a line"
"""What input() raises where nobody types."""
_ON_EVERY_NODE = re.compile(
    r"\b(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)\b"
    r"|can't open file '.*': \[Errno 2\]"
    rf"|{_WAITS_FOR_INPUT}|CUDA error: invalid device ordinal|{MISSPELT}|{NOT_ON_PATH}"
)
"""What Python says of a script that is not there or not right, that imports what is not there, or
that waits for input; torch of one that asks for a GPU beyond those of its job; and we of a command
whose name is misspelt, or that is there where the job's environment is."""
_OURS = re.compile(r"\b_xmem\b|\bxmem_slurm\b")
"""What it says of is of this package: half upgraded, or broken."""


def cannot_run(words: str) -> bool:
    """Whether a script that ended with these words ends so on every node.

    Other files may be on a node's own disk, and a library in C that is missing here may be there.
    """
    return bool(_ON_EVERY_NODE.search(words)) and ".so" not in words and not is_of_ours(words)


def waits_for_input(words: str) -> bool:
    """Whether a script that ended with these words waited for a line that somebody types."""
    return _WAITS_FOR_INPUT in words


def is_of_ours(words: str) -> bool:
    """Whether an exception with these words is a fault of this package, and no fact about the
    script.
    """
    return _OURS.search(words) is not None


class Op(IntEnum):
    """What happens to an allocation, in torch's words."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """The last reference went; the block waits for other streams if it was used there
    (record_stream)."""
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
    """One request to the allocator: `size` in bytes as asked for; `stream` a small number, 0 the
    default stream.
    """

    size: int
    stream: int
    category: Category


class Origin(NamedTuple):
    """Where an allocation was asked for: "" and 0 for what is not known.

    The line is the innermost one outside of torch, `module` the name of the nn.Module that was
    being called. Of what autograd allocated, they are those of the operator in the forward pass,
    and `function` is the backward node.
    """

    file: str
    line: int
    function: str
    module: str

    @property
    def is_own(self) -> bool:
        """Whether it stands in a file of the user's own."""
        return bool(self.file) and is_users(self.file)


_OF_LIBRARIES = re.compile(
    r"/(site|dist)-packages/"
    r"|/lib(64)?/python3[\d.]*/"  # the standard library
    r"|/bin/[^/.]+$"  # torchrun, accelerate
    r"|^<"  # <frozen runpy>, <string>
)
"""Where files are that a script's author did not write."""


def is_users(path: str) -> bool:
    """Whether a file is the user's own, and not a library's."""
    return _OF_LIBRARIES.search(path) is None


NOWHERE = Origin("", 0, "", "")


class Mark(NamedTuple):
    """A point between two allocations; the kinds are those of the file."""

    kind: str
    allocations: int


@dataclass(frozen=True, slots=True)
class Noted:
    """A doubt that was met: words for people, and how often. `share` is its own price, where it
    follows from them.
    """

    doubt: Doubt
    detail: str
    count: int = 1
    share: float | None = None

    @property
    def code(self) -> str:
        """The doubt's, as files have it."""
        return self.doubt.code


class Phase(NamedTuple):
    """A step, counted from 1, that was not like those before it, and how so."""

    step: Count
    what: Text


_Part = tuple[Count, Count | None]
"""How many, of how many."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What of a script ran (probe/_xmem/course/course.py).

    `end`: it came to its own end. `evaluation` is (batches, of how many) of the last one, None
    where there was none; `batches` the same of the last loop over training data, those that were
    only read included. `epochs` are the loops over training data that came to their end (of how
    many that were cut short, too), None where there was none.
    """

    steps: Count
    end: bool = False
    evaluation: _Part | None = None
    batches: _Part | None = None
    epochs: _Part | None = None
    checkpoints: Count = 0
    phases: Sequence[Phase] = ()
    """Steps that differed from those before them, the first of them."""
    whole_until: Count | None = None
    """How many of the trace's allocations come before the first step that is left out; None: none
    is."""
    skipped: Count = 0
    """Calls of models that were not run, as they looked like earlier ones: torch itself allocated
    nothing for them."""


class Training(NamedTuple):
    """Whose trainer runs, and how, as its own objects have it (probe/_xmem/training.py); "" and 0:
    not known.

    `by` is "transformers", "accelerate", "deepspeed", "lightning" or "torchtitan", "" for a loop of
    the script's own. `method` is one of `planning.methods`; `shards` how many ranks share one copy
    of the model, of a hybrid and of torchtitan; `tensor` how many each tensor of a layer.
    `micro_batch` is of one process; `own_batches`: DeepSpeed makes the batches, of the size that
    its file says. `has_options`: Lightning has its arguments from the command line;
    `can_checkpoint`: torchtitan has an option for it; `has_deepspeed`: it is installed. `drawn` is
    the batch of one process as its DataLoaders give it, whoever trains.
    """

    by: Text = ""
    method: Text = ""
    micro_batch: Count = 0
    accumulation: Count = 0
    checkpointing: bool = False
    offloaded: bool = False
    precision: Text = ""
    shards: Count = 0
    own_batches: bool = False
    tensor: Count = 1
    has_options: bool = False
    can_checkpoint: bool = False
    has_deepspeed: bool = False
    drawn: Count = 0


class File(NamedTuple):
    """A path that the dry run met, as it was then; the kinds are those of
    `probe/_xmem/process/files.py`.
    """

    kind: str
    size: int
    mtime_ns: int
    path: str


class Event(NamedTuple):
    """One operation on allocation number `allocation` (its place in `Trace.allocations`)."""

    op: int
    allocation: int


class Repeat(NamedTuple):
    """Steps left out: the events from `first` on, up to `end`, came so many `times` more, one after
    another.
    """

    first: int
    end: int
    times: int


@dataclass(frozen=True, slots=True)
class ShownGpu:
    """The GPU that the process was shown."""

    name: Text
    capability: Annotated[str, Checked(pattern=r"^\d{1,2}\.\d{1,2}$")]
    multiprocessors: Count
    total_bytes: Count


@dataclass(frozen=True, slots=True)
class ScriptFailure:
    """What ended a script, in words; `type` is that of the exception, as Python names it, "" where
    it was none.

    `offline` is set where the script had asked for something that a dry run cannot reach: that may
    be why.
    """

    words: str
    type: str = ""
    offline: bool = False

    @property
    def of_no_gpu(self) -> bool:
        """Whether no GPU can be why, nor a value on one."""
        return self.offline or self.type in _OF_NO_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that was watched, by either engine; the fields are those of the file, but for
    `failure`, which is read from its `error`.
    """

    argv: Sequence[Text]
    rank: Count
    world_size: Count
    component: Count = 0
    nodes: Count = 1
    state: Text
    failure: ScriptFailure | None
    torch_version: Text
    cuda_version: Text | None
    allocator_settings: Text
    gpu: ShownGpu
    python: Text = ""
    """The path of the Python that ran it; "" where that is not known."""

    @property
    def error(self) -> str | None:
        """What ended the script, in words; None where nothing was wrong."""
        return None if self.failure is None else self.failure.words


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures(Process):
    """What a trace has as it is in its file: who adds one declares it here, and the probe writes
    it under the same name.

    `recorded` holds torch's own peaks, against which a replay can be checked.
    """

    recorded: Mapping[Text, Count]
    between_resets: Sequence[Mapping[Text, Count]] = field(default_factory=list)
    """What torch would have said its peaks were whenever the script had it forget them, and at the
    end."""
    place: Text = ""
    lived: tuple[Seconds, Seconds] = (0.0, 0.0)
    peers: Sequence[Count] = field(default_factory=list)
    """Ranks that may need another amount of memory than this one."""
    changed: Text = ""
    """What of the job was changed for advice; empty where it ran as it is."""
    training: Training = Training()  # noqa: RUF009 - a tuple
    mallocs_before_launch: Count | None = None
    """How often memory was taken from the device before any kernel was launched; None: not
    known."""
    host_bytes: Count = 0
    """Host memory of no file, with that of its data loaders' workers, the most that was found."""
    seen: Seen | None = None
    arch_list: Sequence[Text] = field(default_factory=list)
    """What the job's torch has kernels for (`kernels`); empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(TraceFigures):
    """One GPU process, with numbers for its allocations."""

    allocations: Sequence[Allocation]
    events: Sequence[Event]
    marks: Sequence[Mark]
    doubts: Sequence[Noted]
    files: Sequence[File] = ()
    """What the Pythons of the whole dry run met (`read_files`); empty where that was not noted."""
    array_task: int | None = None
    """Which task of an array it is of, where some need other amounts than others
    (`sizing.dry_runs`); in no file."""
    sites: Sequence[Origin] = ()
    callers: Sequence[int] = ()
    """The number of the site that called each; 0: none."""
    made_at: Sequence[int] = ()
    """The number of each allocation's site."""
    counts: StepCounts | None = None
    """What one optimizer step did; None where no two were seen, or nobody counted."""
    repeats: Sequence[Repeat] = ()
    """Where steps are left out that were like the one before, in order."""
    bounds: Mapping[int, int] = field(default_factory=dict)
    """For requests of these bytes, the bytes that they may be of on the GPU: what a library chooses
    there."""

    def has(self, *doubts: Doubt) -> bool:
        """Whether it has one of these doubts."""
        return any(noted.doubt in doubts for noted in self.doubts)

    def site_of(self, allocation: int) -> Origin:
        """Return where an allocation was asked for."""
        return self.sites[self.made_at[allocation]] if self.made_at else NOWHERE

    def stack_of(self, allocation: int) -> list[Origin]:
        """Return the site of an allocation and those that called it, the innermost first; of none
        nothing is known.
        """
        stack, number = [], self.made_at[allocation] if self.made_at else 0
        while number:
            stack.append(self.sites[number])
            number = self.callers[number] if self.callers else 0
        return stack

    @property
    def steps(self) -> int:
        """How many optimizer steps were seen; the marks are those of the steps that were kept."""
        if self.seen is not None:
            return self.seen.steps
        return sum(mark.kind == "step" for mark in self.marks)

    @property
    def came_to_its_end(self) -> bool:
        """Whether it came to its script's own end, with nothing cut short but what whole epochs
        stand for.
        """
        ended = self.seen is not None and self.seen.end and self.failure is None
        return ended and not self.has(Doubt.NOT_REACHED)

    @property
    def failed(self) -> bool:
        """Whether the script stopped before two steps, with an error: too early to be an answer."""
        return self.failure is not None and self.steps < LEAST_STEPS

    @property
    def fails_on_any_gpu(self) -> bool:
        """Whether the script stopped by itself, and no GPU and no value on one can be why.

        Either it had not touched a GPU yet, or its error is one that has nothing to do with them.
        """
        untouched = self.state == "exit" and not self.recorded and not self.allocations
        return self.failed and (untouched or (self.failure is not None and self.failure.of_no_gpu))

    @property
    def is_whole(self) -> bool:
        """Whether the run came to its end, or to where it only repeats itself."""
        return not self.growing and self.failure is None

    def beside(self, trace: "Trace") -> bool:
        """Whether the two processes were on one GPU at once. What was not noted was not."""
        at_once = max(self.lived[0], trace.lived[0]) < min(self.lived[1], trace.lived[1])
        return at_once and (self.component, self.place) == (trace.component, trace.place)

    @property
    def growing(self) -> bool:
        """Whether the run ended before its steps were seen to repeat: the real peak may be
        higher.
        """
        return self.state not in ("steady", "exit")


def fail_on_any_gpu(traces: Sequence[Trace]) -> bool:
    """Whether another dry run of the job, on whatever GPU and however, would end as this one: see
    `Trace`.
    """
    if any(trace.allocations and not trace.failed for trace in traces):
        return False
    failed = [trace for trace in traces if trace.failed]
    return bool(failed) and all(trace.fails_on_any_gpu for trace in failed)
