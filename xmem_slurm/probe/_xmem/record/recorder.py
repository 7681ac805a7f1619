"""Records what one process asks of torch's caching allocator, and writes it as a trace (form:
xmem_slurm/trace.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from _xmem import patches
from _xmem.advice import JobChange
from _xmem.course.course import Course
from _xmem.engine import ProbeEngine
from _xmem.process import alive, description, ends, network, stand_ins
from _xmem.process.threads import OtherThreads
from _xmem.ranks import checkpoints, launch, rank
from _xmem.ranks.first import FirstCollective
from _xmem.ranks.rank import LoneRank
from _xmem.record.counting import Counting
from _xmem.record.garbage import Garbage
from _xmem.record.history import SLICE, History
from _xmem.record.host import HostMemory
from _xmem.record.served import Served
from _xmem.record.sites import Sites
from _xmem.record.streams import Streams
from _xmem.record.tags import Tags
from _xmem.repeat.calls import Calls
from _xmem.repeat.clipping import Clipping
from _xmem.repeat.journal import Journal
from _xmem.repeat.optimizers import OptimizerSteps
from _xmem.repeat.ranges import Ranges
from _xmem.repeat.walks import Walks
from _xmem.training import TrainingSeen
from _xmem.triton import Triton
from _xmem.values.host_weights import HostWeights
from _xmem.values.known_values import KnownValues
from _xmem.values.reads import Reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _xmem.annotations import Environ, Function, Note, Optimizer
    from _xmem.process.times import Times

SCHEMA_VERSION = 1
TAGGED_STEPS = 32
"""Steps at which the tensors of parameters, gradients and optimizer state are looked up; later,
where the peak grew.

Steps that repeat earlier ones are folded before (`record/history`): in a report gradients are
gradients to the end."""
HOST_STEPS = 64
"""Steps from one look at the host's memory to the next, after the first ones."""
CHECKPOINT_STEPS = (2, 4, 8)
"""Steps after which the trace so far is written, so that a process that is killed early leaves one,
too..."""
CHECKPOINT_SECONDS = 5.0
"""...and how often after that, at the least."""
PASSES = ("backward", "backward_end")
"""Marks of each step."""
LOOK_SECONDS = 0.25
"""How often the thread looks that watches: limits are passed by so much at the most, and a process
that is killed sooner leaves no trace."""
MOST_ALLOCATIONS = 300_000
"""A trace that is longer, shortened as it is (`record/history`), is of no more use: the process
ends there."""


class Recorder(ProbeEngine):
    """One for each process that imports torch. A forked child that touches CUDA itself records on
    its own.

    With a budget that is limited a process ends once it is steady; without, it runs to its end.
    """

    def __init__(self, environ: Environ, times: Times) -> None:
        self._settings: dict[str | None, str | None] = {}
        self._course = Course(self, environ)
        self._journal = Journal()
        self._allocator = Served(self._journal)
        self._streams = Streams()
        self._reads = Reads()
        self._garbage = Garbage()
        self._most = float(environ.get("XMEM_MOST", "inf"))
        # of several ways to train, of which only those that fit are of interest
        self._is_brief = environ.get("XMEM_BRIEF") == "1"
        # until torch is there
        self._calls: Calls = None  # type: ignore[assignment]
        self._values: KnownValues = None  # type: ignore[assignment]
        self._rank: LoneRank | None = None
        self._first = FirstCollective(
            environ.get("XMEM_STARTS") == "1", lambda: self.leave("steady"), self.level
        )
        self._triton: Triton | None = None
        self._advice: JobChange | None = None
        self._training: TrainingSeen | None = None
        self.loops = 0
        """How many evaluations, and loops over data, the script has begun."""
        super().__init__(environ, times)
        self.table = patches.DEVICE + patches.ADVICE.get(environ.get("XMEM_ADVICE", ""), ())

    def _begin(self) -> None:
        super()._begin()
        self._started = time.time()
        self._backwards = self._unstepped = False
        self._within, self._counting = 0, Counting(self._journal)
        self._sites = Sites(self._journal)
        self._allocator.clear()
        self._tags = Tags(self._sites, self._allocator)
        self._host, self._other_threads = HostMemory(), OtherThreads()
        self._history = History(self._sites, self._ends, self._journal)

    # -- around `import torch` ---------------------------------------------------------------------

    def before_torch(self, folder: str) -> None:
        """Map the stand-ins, or end this process: without them torch would compute for real on a
        login node's CPU.
        """
        try:
            self._build = stand_ins.torch_build(folder)
            if self._build.cuda is None:
                raise RuntimeError(
                    "torch %s in %s is not a CUDA build" % (self._build.torch, folder)
                )
            self._map_stand_ins(folder)
        except Exception as error:
            self.give_up(str(error))
        self._choose_allocator()
        super().before_torch(folder)

    def _choose_allocator(self) -> None:
        """Take torch's own allocator in place of CUDA's, which it cannot record; the trace says
        what the job chose.
        """
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if name in os.environ:
                chosen = os.environ[name]
                os.environ[name] = chosen.replace("cudaMallocAsync", "native")
                self._settings = {os.environ[name]: chosen}

    def _parts(self) -> dict[str, Any]:
        """Return what hooks in, by the names of `patches`."""
        torch = self._torch
        self._values = KnownValues(torch, self._environ)
        self._triton = Triton(torch, self._values)
        self._advice = JobChange(torch, self._environ.get("XMEM_BATCH"))
        self._training = TrainingSeen(torch)
        parts = {
            "training": self._training,
            "served": self._allocator,
            "streams": self._streams,
            "reads": self._reads,
            "values": self._values,
        }
        parts.update(
            host_weights=HostWeights(torch, self._host_memory),
            triton=self._triton,
            advice=self._advice,
            sites=self._sites,
        )
        if self._ends:
            parts["course"] = self._course
        self._calls = Calls(torch, self._journal, self, self._values)
        parts.update(calls=self._calls, optimizer_steps=OptimizerSteps(torch, self._calls))
        parts.update(
            clipping=Clipping(torch, self._calls), ranges=Ranges(torch), walks=Walks(torch)
        )
        if torch.distributed.is_available():
            self._rank = LoneRank(torch, lambda: self.leave("steady"), self._values, self.level)
            parts.update(
                rank=self._rank, peers=self._rank.peers, collectives=self._rank.collectives
            )
            parts.update(first=self._first)
            parts.update(launch=launch, checkpoints=checkpoints)
        return parts

    def level(self) -> int:
        """Return the bytes that are allocated now, with those of skipped calls."""
        return self._allocator.current() + self._journal.allocated

    def reads_unexplained(self) -> int:
        """Return how much oftener the host has read zeros than values were asked for."""
        return self._reads.count - self._values.reads

    def drawn_by(self, workers: list[int], number: int, batch_bytes: int) -> None:
        """Workers of a data loader hold host memory (`record/host`)."""
        self._host.drawn_by(workers, number, batch_bytes)

    def _host_memory(self) -> HostMemory:
        return self._host  # of a fork it is another one

    def _hooked(self) -> None:
        if self._rank is not None:
            self._rank.begin()
        if "values" not in self._away:
            self._values.begin()
        if "reads" not in self._away:
            assert self._runtime is not None
            self._reads.watch(self._torch, self._runtime)

    def begun_with_cuda(self, lazy_call: Function, _owner: object) -> Function:
        """Nothing is recorded before CUDA is first used, so that forking stays as safe as it
        was.
        """
        lazy_call(self._start)
        return lazy_call

    def _start(self) -> None:
        """Record from here on: CUDA is used."""
        try:
            self._history.begin(self._torch, self._environ.get("XMEM_SITES") == "frames")
        except RuntimeError as error:
            self.give_up("torch cannot record what this allocator does: %s" % ends.one_line(error))
        if self._environ.get("XMEM_SITES") == "hook" and "sites" not in self._away:
            self._sites.watch(self._torch)
        with self._lock:
            self._allocator.begin(self._torch)
            self._garbage.watch(self._allocator.current)
            self._started = time.time()
        if self._ends and "calls" not in self._away:
            self._calls.begin()
            self._history.reader = self._calls
        threading.Thread(target=self._watch, name="xmem", daemon=True).start()

    # -- while the job runs ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _within_backward(self) -> Iterator[None]:
        self._first.reached()
        self.mark("backward")
        self._backwards = True
        self._within += 1
        try:
            with self._sites.backward():
                yield
        finally:
            self._within -= 1
            self.mark("backward_end")
            if not self._within and self._runtime is not None:  # checkpoints have passes within
                self._counting.passed(self._runtime)

    def mark(self, kind: str) -> None:
        """Note that something begins or ends here, or is done (`marks` of a trace); where steps
        repeat others not.
        """
        if self._history.recording and not (self._history.repeats and kind in PASSES):
            self._history.mark(kind, self._allocator.look(), time.monotonic())

    def _after_step(
        self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> None:
        """Mark the step and tag what the optimizer holds; end where nothing new is to come."""
        if not self._history.recording or self._finished or getattr(optimizer, "optimizers", None):
            return  # of several (torchtitan's OptimizersContainer) each has told of its own step
        if self._steps.number < TAGGED_STEPS or not self._steps.number % HOST_STEPS:
            self._host.look()
        self._exit = None  # whoever called sys.exit was not heeded
        self._other_threads.go_on(self._allocator.look)
        counts, moment = self._allocator.look(), self._course.clock.now()
        first, furthest, grew = self._steps.number == 0, self._steps.number, self._allocator.grew()
        number = self._steps.stepped(optimizer, grew, moment)
        self._values.metrics.steps_made = self._steps.all
        self.says("step %d" % max(number, furthest), self._rank_and_size)
        if number > furthest:
            self._history.mark("step", counts, time.monotonic())
            assert self._runtime is not None
            self._counting.stepped(self._runtime, self._allocator.requested())
        if number <= TAGGED_STEPS or grew:
            self._tags.optimizer(self._torch, optimizer, first)
        if first:
            self._tags.modules(self._torch)
        met = self._boundary(counts) if self._steps.leads else True
        self._course.stepped(self._allocator.allocated, self._allocator.peak(), met, number == 1)
        if self._ends and self._steps.repeat(self._course.steady_steps()):
            self._end_if_enough()
        elif self._ends and self._is_brief and self._is_too_large():
            self._leave_with_all_ranks()
        if number > furthest and number in CHECKPOINT_STEPS:
            self.write("running")

    def _boundary(self, counts: list[int]) -> bool:
        """The script has come round: a step, or a batch without one. Tell whether it was like an
        earlier round.
        """
        with self._lock:
            return self._history.boundary(
                counts, self._allocator.totals, self._allocator.peaks, self._allocator.allocated
            )

    def fetching(self) -> bool:
        """A batch is asked for; no step was made since the last one. Tell whether what came since
        was like an earlier round.
        """
        return not self._history.recording or self._finished or self._came_round()

    def again(self, last: int | None, evaluates: bool, *, waits: bool = False) -> int:
        """A call comes, and the last of its kind came in round `last`; return the round that this
        one is in.

        Where there are neither steps nor batches, a script has come round when it makes the same
        call again; where it `evaluates`, too, as it may have batches of its own making. `waits`:
        what was recorded waits for that, and the script is taken to have come round.
        """
        same = last == self._history.intervals and (evaluates or self._steps.number == 0)
        if same or waits:
            self._came_round()
        return self._history.intervals

    def _came_round(self) -> bool:
        """The script has come round without a step; end where nothing new is to come. Tell whether
        the round was like an earlier one.
        """
        met = self._boundary(self._allocator.look())
        if (
            self._ends
            and self._steps.number == 0
            and self._history.folds
            and not self._accumulates()
        ):
            self._end_if_enough()
        return met

    @property
    def interval(self) -> int:
        """The number of the step, or the batch, that the script is in."""
        return self._history.intervals

    def measures(self, *, shown: bool = True) -> None:
        """The script begins to evaluate, or another loop over data, as it has `shown` or not."""
        self.loops += shown
        self._values.metrics.measured(self.steps_made(), shown=shown)

    def steps_made(self) -> int:
        """Return how many steps were made, of all optimizers together."""
        return self._steps.all

    def counts(self, kind: object) -> bool:
        """A call of this kind comes: say whether it has to be made, so that it be known what a step
        has the GPU do.
        """
        return self._counting.wants(kind)

    def _accumulates(self) -> bool:
        """Whether gradients are made for an optimizer that has not stepped: its state is to come,
        however late.
        """
        return self._backwards and bool(alive.of_class(self._torch.optim.Optimizer))

    def allocated(self) -> int:
        """Return the bytes that are allocated, on all devices."""
        self._allocator.look()
        return self._allocator.allocated

    def peak(self) -> int:
        """Return the most bytes that were allocated on one device so far."""
        self._allocator.look()
        return self._allocator.peak()

    def add(self, size: int) -> tuple[int, int, int]:
        """Add what the script would have kept on the GPU, had it not been cut short; return what
        `drop` takes.
        """
        with self._lock:
            self._history.take(self._allocator.look(), self._allocator.peaks)
            return self._history.add(self._allocator.devices[0], size)

    def drop(self, added: tuple[int, int, int]) -> None:
        """Free what was added."""
        with self._lock:
            self._history.take(self._allocator.look(), self._allocator.peaks)
            self._history.drop(self._allocator.devices[0], added)

    def _end_if_enough(self) -> None:
        if self._too_long():
            self.leave("budget")
        if self._steps.waits(self._torch.optim.Optimizer, self._course.clock.now()):
            return
        if self._course.enough(self._budget.share()) or self._is_too_large():
            self._leave_with_all_ranks()

    def _leave_with_all_ranks(self) -> None:
        """End the run if all ranks that run with this one have come as far."""
        if self._rank is None or self._rank.all_steady():
            self.leave("steady")

    def _is_too_large(self) -> bool:
        """Whether training fits no GPU of the kind that it is shown. Where that hangs on values
        that are not known, real steps may need less (`dryrun/engines`), and have to know what comes
        later.
        """
        peaks = [peaks["allocated_bytes"] for peaks in self._allocator.torch_peaks.values()]
        if not self._steps.number or max(peaks, default=0) <= self._most:
            return False
        told = {row["code"] for row in self._doubts([self._reads, self._values])}
        return told.isdisjoint(("value-shape", "forward-read"))

    def _watch(self) -> None:
        """Write the trace as soon as GPU memory is used, then more and more seldom; the last time
        as the budget ends. Between, say that the process lives (`_say_alive`).

        The script's own thread may not let go of the interpreter for minutes: what is not written
        by then is lost.
        """
        pid, due = os.getpid(), float("inf")
        began: float | None = None
        while not self._finished and os.getpid() == pid:
            time.sleep(LOOK_SECONDS)
            # the script changes what is looked at meanwhile: the next look is due
            with contextlib.suppress(Exception):
                self._say_alive()
                counts, moment = self._allocator.look(), time.monotonic()
                if began is None and any(counts):
                    began = due = moment
                if self._budget.seconds_left() <= 0:
                    self.finish("steady" if self._course.repeats() else "budget")
                elif self._too_long():
                    self.leave("budget")
                elif self._course.overdue(self._course.clock.now()):
                    self.leave("steady")
                elif began is not None and moment >= due:
                    self.write("running")
                    cost = time.monotonic() - moment
                    due = moment + max(min(CHECKPOINT_SECONDS, moment - began), 20 * cost)
                elif self._ends and self._history.untaken(counts) > SLICE:
                    with self._lock:
                        self._history.take(counts, self._allocator.peaks)

    def _say_alive(self) -> None:
        """Give what was written the time of the next look: a process that is killed before was on
        its GPU until then (`read` in xmem_slurm/dryrun/runner.py), and what ran beside it adds up.
        """
        until = time.time() + LOOK_SECONDS
        for device in self._history.devices():
            with contextlib.suppress(OSError):  # not written yet
                os.utime(self._file_of(device), (until, until))

    def _file_of(self, device: int) -> str:
        return "%s-%d.json.gz" % (self._file, device)

    @property
    def _ends(self) -> bool:
        return self._budget.is_limited()

    def _too_long(self) -> bool:
        return (
            self._ends
            and max(map(self._history.allocations, self._history.devices())) > MOST_ALLOCATIONS
        )

    # -- the end of a process ----------------------------------------------------------------------

    def in_child(self) -> None:
        """Forget the parent's run. CUDA cannot be used again after a fork, so the child of one that
        has is silent.
        """
        recorded = self._history.recording or self._finished
        self._begin()
        self._finished = recorded

    def finish(self, state: str, error: str | None = None) -> None:
        """Write the trace for the last time."""
        with self._lock:
            if self._is_over():
                return
            self._error = error or ends.uncaught() or self._exit
            never_stepped = state == "exit" and self._history.recording and self._steps.number == 0
            if (
                never_stepped
                and self._has_optimizer()
                and self._course.meant_to_train()
                and not self._only_infers()
            ):
                self._error = (
                    self._error or "an end before the first step of its optimizer (see its log)"
                )
            if self._error is not None and (error is not None or network.may_explain(ends.last())):
                self._error += network.missing(ends.last())
            if self._history.recording and self._steps.number == 0:
                self._tags.modules(self._torch)
            if state != "exit":
                self._course.ending()
            self.write(state)
            self._finished = True
            self._reads.end()
            if self._rank is not None:
                self._rank.ended()

    def _only_infers(self) -> bool:
        """Whether memory was given back, as of activations, and no backward pass can follow; asked
        in its thread.

        Or none did, in loops over data that came to their end, or no error can have kept the script
        from a step: then that is a doubt.
        """
        if not self._allocator.freed():
            return False
        self._unstepped = self._backwards or bool(self._torch._C._autograd._get_sequence_nr())
        evaluated = self._course.evaluated_all() and not self._backwards
        return not self._unstepped or evaluated or not self._calls.failed

    def write(self, state: str) -> None:
        """Write the trace so far under `state`, one file a device: all of it or nothing, whatever
        happens meanwhile.
        """
        with self._lock:
            if self._finished:
                return
            self._host.look_back()
            if self._history.recording:
                self._history.take(self._allocator.look(), self._allocator.peaks)
                # adds to the environment's
                self._settings.setdefault(self._history.settings, self._history.settings)
                if state != "running":
                    self._history.end()
            for device in self._history.devices():
                description.write(self._file_of(device), self._trace(state, device))

    def _trace(self, state: str, device: int) -> dict[str, Any]:
        """Return the trace of one device (form: xmem_slurm/trace.py)."""
        settings = ",".join(filter(None, self._settings.values()))
        hooked = [
            part
            for part in (
                self._rank,
                self._triton,
                self._streams,
                self._calls,
                self._values,
                self._other_threads,
            )
            if part is not None
        ]
        self._course.script_ended = state == "exit" and self._error is None
        training: dict[str, Any] = {}
        if self._training is not None:
            training = self._training.describe(self._course.batch_size())
        mallocs_before_launch = None
        if self._runtime is not None:
            mallocs_before_launch = stand_ins.mallocs_before_launch(self._runtime, device)
        return {
            **self._described(state, settings, self._rank_and_size()),
            "schema_version": SCHEMA_VERSION,
            "pid": self._pid,
            "device": device,
            "place": stand_ins.place(device),
            "lived": [self._started, time.time()],
            "events": self._history.columns(device),
            "sites": self._sites.columns(self._history.sites(device)),
            "marks": self._history.marks(device),
            "tags": self._tags.of(device, self._history.places(device)),
            "recorded": self._allocator.torch_peaks.get(device, {}),
            "between_resets": self._allocator.between_resets(device),
            "seen": self._what_was_seen(device),
            "doubts": self._doubts([self, *hooked]),
            "bounds": [] if self._runtime is None else stand_ins.bounds(self._runtime),
            "peers": self._rank.unlike() if self._rank is not None else [],
            "work": None if self._runtime is None else stand_ins.work(self._runtime),
            "changed": self._advice.changed() if self._advice is not None else "",
            "training": training,
            "host_bytes": self._host.most_bytes,
            "mallocs_before_launch": mallocs_before_launch,
        }

    def _what_was_seen(self, device: int) -> dict[str, Any]:
        return {
            **self._course.observations,
            "steps": self._steps.number,
            "end": self._course.script_ended,
            "whole_until": self._history.whole_until(device),
            "skipped": 0 if self._calls is None else self._calls.skipped,
        }

    def _rank_and_size(self) -> tuple[int, int]:
        return rank.rank_and_size() if self._rank is None else self._rank.rank_and_size()

    def doubt(self, note: Note) -> None:
        """Say what the stand-ins could not answer, and what was not seen of the script."""
        for row in [] if self._runtime is None else stand_ins.doubts(self._runtime):
            note(row["code"], row["detail"], row["count"])
        self._course.doubt(note)
        world = self._rank_and_size()[1]
        if world > 1:
            self._course.doubt_others(note, world)
        self._reads.doubt(note)
        self._garbage.doubt(note, self._allocator.peak())
        if self._history.recording and not self._has_optimizer():
            note("no-optimizer", "the script made none")
        if self._tries_plans():
            note("cudnn-trials", "torch.backends.cudnn.benchmark")
        if self._unstepped:
            note("never-stepped", "its optimizer made no step")
        self._history.doubt(note)

    def _tries_plans(self) -> bool:
        """Whether cuDNN's plans were asked for, of which a GPU would try all."""
        planned = (
            self._history.recording
            and self._runtime is not None
            and stand_ins.bounds(self._runtime)
        )
        return bool(planned) and self._torch.backends.cudnn.benchmark

    def _has_optimizer(self) -> bool:
        return self._steps.number > 0 or alive.any_made(self._torch.optim.Optimizer)
