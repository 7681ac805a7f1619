"""How far a run goes: to the script's own end. Where that is too far, as far as it may, then on
with less data.

What was met before costs next to nothing (`repeat/`), so a run goes on as it is until the script
ends. Where most of its budget is spent before (`SHARE`), what would come after is looked for, which
is no more than a scout's report:

1. data loaders are cut short: a loop over one in which steps were made ends as at the end of its
   data, and what follows (evaluation, checkpoint, the next epoch) comes at once. A loop without
   steps is an evaluation: it runs in full, unless it takes too long, and then what it kept on the
   GPU by batch is added for the batches that were cut;
2. after so long (`CUT`) the run ends; where whole epochs may stand for the rest, with the budget.

A script that was cut has not come to its end: what the rest of it needs is a doubt, unless the
epochs that were seen whole stand for it (`epochs`, Note [Epochs alike]).

A brief run (XMEM_BRIEF) is of a job that was run before, but for how it trains: it is cut as soon
as it repeats itself. Where a run of the job has come to its end (XMEM_END_SEEN, `dryrun/engines`),
another with other losses is of use if it does so, too: its loops are cut short once its epochs are
alike, and else not before the last of its budget.

Who counts batches by itself (ignite's engine, `except StopIteration: batches = iter(loader)`)
begins a loop over that was cut short, and is none the nearer to its end. After `AGAIN` such loops
they are whole again.

Before a loader is cut, what it would still give is drawn, and the largest batch is trained on:
lengths vary. A loader has no more workers than there are CPUs here: more of them only make the
first batch wait for the others'. Of an IterableDataset it has all: what each of them gives may hang
on its number, and on how many there are. All seconds are those of `process/clock`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from _xmem import doubts
from _xmem.course import batches
from _xmem.course.drawing import Drawing, is_worker, unwatched
from _xmem.course.epochs import Epochs
from _xmem.process import own_code
from _xmem.process.budget import TimeLeft
from _xmem.process.clock import Clock
from _xmem.process.steps import ALIKE_STEPS, STEADY_STEPS

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from _xmem.annotations import CourseWatcher, Environ, Function, LoopKind, Module, Note

SHARE, SHARE_ALIKE = 0.75, 0.5
"""Of its budget that a run spends on the script as it is: the less where epochs are alike, as then
the rest of the budget may see the script's end."""
SHARE_AGAIN, SHARE_ALIKE_AGAIN = 0.98, 0.0
"""The same where a run of the job has seen that."""
CUT = 10.0
"""How long a run may take with its loaders cut short, and..."""
EVALUATION = 5.0
"""...of that one loop without steps."""
PHASES = 16
"""So many changes of what a step does are told."""
BATCHES = 3
"""What a loader that is cut short still gives, or as many as two optimizer steps took (gradient
accumulation)."""
GROWING_STEPS = 16
"""After so many steps that each left more bytes allocated, the rest of them is taken to do so,
too."""
LONG = 100_000
"""So many steps are taken for the rest of the script, to tell whether what grows matters..."""
MATTERS = 0.02
"""...which is where it would add this share of what is allocated."""
_OF_ITERATORS = ("_collate_fn", "_dataset", "_num_yielded")
"""What is read of a loader's iterator (torch/utils/data/dataloader.py, 2.4 to 2.15)."""
_COLLATES = "torch.utils.data._utils.collate"
"""Where torch puts samples together (2.4 to 2.15)."""
LARGE_PART = 1 << 20
"""Bytes of a tensor whose copy into pinned memory takes longer than the look at it."""
AGAIN = 2
"""So many loops that were cut short are begun again at once before none is cut any more."""
VARIED = 8
"""Steps vary where this many of the last four times as many were of kinds that had not been met
before; they differ where there are more kinds."""


class Course:
    """The way of one process. `recorder` is told of batches and of what is to be added; see
    `record/recorder`.
    """

    _began: float | None
    _cut_since: float | None

    def __init__(self, recorder: CourseWatcher, environ: Environ) -> None:
        self._recorder, self._brief = recorder, environ.get("XMEM_BRIEF") == "1"
        end_seen = environ.get("XMEM_END_SEEN") == "1"
        self._share, self._share_alike = (
            (SHARE_AGAIN, SHARE_ALIKE_AGAIN) if end_seen else (SHARE, SHARE_ALIKE)
        )
        self._seconds = float(environ.get("XMEM_CPU_SECONDS", "inf"))
        self.clock = Clock(TimeLeft(environ))
        self._started = self.clock.now()
        self._began = self._cut_since = None
        self._newest = 0  # the last step that was not like an earlier one
        self._epochs = Epochs(end_seen=end_seen)
        self._steps = self._fetched = self._fetched_at_step = 0
        self._batches_a_step = 1
        self._begun_again = 0  # loops that were cut short, by who was told of their end
        self._loader: batches.Iteration | None = None  # the iteration that gave the last batch
        # (level below which it is gone, what the recorder calls it) of what was added
        self._added: list[tuple[int, Any]] = []
        # kind of iteration: how many batches of it were drawn, and bytes of the largest
        self._drawn: dict[LoopKind, tuple[int, int]] = {}
        self._batch_sizes: set[int] = set()  # of loaders that training draws from
        # kinds of iterations of which workers' memory was looked at
        self._kinds_held: set[LoopKind] = set()
        self._levels: list[int] = []  # bytes allocated after each of the last GROWING_STEPS
        self._floors: list[int] = []  # the least of each so many steps, the last so many
        self._unmet: list[bool] = []  # whether each of the last steps was of a kind not met before
        self._alike = 0  # steps, and batches without one, since one was of such a kind
        self._kinds = 0  # how many were
        self._peaks = batches.Records()
        self._training, self._within_loop = True, False
        self.observations: dict[str, Any] = {
            "evaluation": None,
            "checkpoints": 0,
            "batches": None,
            "epochs": None,
            "phases": [],
        }
        """What was seen, as in a trace."""
        self.script_ended = False
        """Whether the script came to its own end."""
        self._drawings: dict[int, Drawing] = {}  # by the id of the data set
        self._doubts: dict[tuple[str, str], float | None] = {}

    # -- what takes the place of torch's own (`patches`): data loaders, what switches to evaluation,
    # checkpoints -------

    def begun(self, begin: Function, _loader_class: type) -> Function:
        """A data loader has no more workers than there are CPUs; where batches are given again it
        needs none.
        """

        def begun(loader: Any) -> Any:
            """Begin a loop; what the script has told its loader stays."""
            self._begun_again += isinstance(sys.exc_info()[1], batches.CutShort)
            asked_workers = loader.num_workers
            if not isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset):
                loader.num_workers = self._workers(loader)
            try:
                iterator = begin(loader)
            finally:
                loader.num_workers = asked_workers
            iterator._xmem_asked = asked_workers
            return iterator

        return begun

    def _workers(self, loader: Any) -> int:
        """Return how many workers a loader gets: none where its batches are given again.

        To start them, and to have batches handed over, costs more than it saves then. A script that
        begins each worker itself may have one draw larger samples than another: it gets them all.
        """
        drawing = self._drawings.get(id(loader.dataset))
        if drawing is None or not drawing.is_of(loader.dataset):
            with contextlib.suppress(TypeError):
                self._drawings[id(loader.dataset)] = Drawing(loader)
        elif drawing.gives_again and not drawing.needs_workers(loader):
            return 0
        begin = getattr(loader.worker_init_fn, "func", loader.worker_init_fn)  # of a partial
        if begin is not None and own_code.is_of_the_job(getattr(begin, "__module__", None)):
            return loader.num_workers
        return min(loader.num_workers, len(os.sched_getaffinity(0)))

    def asked(self, ask: Function, _owner: object) -> Function:
        """Around what tells a worker who it is: a data set that asks needs workers.

        torch itself asks in each worker, to place what it puts together in shared memory.
        """

        @functools.wraps(ask)
        def noted_ask() -> Any:
            worker_info = ask()
            if worker_info is not None and sys._getframe(1).f_globals.get("__name__") != _COLLATES:
                for drawing in self._drawings.values():
                    drawing.may_have_asked()
            return worker_info

        return noted_ask

    def fetched(self, fetch: Function, _fetcher_class: type) -> Function:
        """Samples are drawn and put together; in a worker, where there are such."""
        draw = unwatched(fetch)

        def noted_fetch(fetcher: Any, index: Any) -> Any:
            drawing = self._drawings.get(id(fetcher.dataset))
            if drawing is None or not drawing.is_of(fetcher.dataset) or not fetcher.auto_collation:
                return draw(fetcher, index) if is_worker() else fetch(fetcher, index)
            return drawing.fetch(draw if is_worker() or drawing.on_host else fetch, fetcher, index)

        return noted_fetch

    def pinned(self, pin: Function, _owner: object) -> Function:
        """Around torch's pinning of a batch or a part of one: a large tensor is not copied, as no
        GPU reads it.
        """
        plain = sys.modules["torch"].Tensor

        @functools.wraps(pin)
        def pinned(part: Any, *args: Any, **kwargs: Any) -> Any:
            is_large = type(part) is plain and part.nbytes >= LARGE_PART
            return part if is_large else pin(part, *args, **kwargs)

        return pinned

    def given(self, give: Function, _iterator_class: type) -> Function:
        """Each batch comes through here, unless this torch's iterators have other names for what is
        asked of them.
        """

        def noted_give(loader: Any) -> Any:
            missing = [name for name in _OF_ITERATORS if not hasattr(loader, name)]
            if missing:
                doubts.note(
                    "hook-missing", "no %s of a data loader's iterator in this release" % missing[0]
                )
            return give(loader) if missing else self._give(loader, give, sys._getframe(1))

        return noted_give

    def trained(self, train: Function, _module_class: type) -> Function:
        """A model is switched to training or evaluation."""

        def noted_train(module: Module, mode: bool = True) -> Any:
            if not mode and self.observations["evaluation"] is None:
                self.observations["evaluation"] = 0, None
            if mode != self._training and self._steps:
                self._recorder.mark("training" if mode else "evaluation")
            self._training = mode
            if not mode:
                self._recorder.measures()
                self._recorder.says("evaluating")
            return train(module, mode)

        return noted_train

    def saved(self, save: Function, _torch: ModuleType) -> Function:
        """A checkpoint is written."""

        @functools.wraps(save)
        def noted_save(*args: Any, **kwargs: Any) -> Any:
            if self._steps:
                self.observations["checkpoints"] += 1
                self._recorder.mark("checkpoint")
            return save(*args, **kwargs)

        return noted_save

    # -- batches -----------------------------------------------------------------------------------

    def _give(self, loader: Any, give: Function, frame: FrameType) -> Any:
        """Give the next batch to a loop in `frame`, or end it where the loader is cut short."""
        moment = self.clock.now()
        state = loader.__dict__.setdefault("_xmem_iteration", None)
        if state is None or state.ended or loader._num_yielded == 0:
            state = loader._xmem_iteration = batches.Iteration(loader, self._steps, moment)
            self._recorder.measures()
        if self._fetched_at_step != self._fetched or not self._steps:
            self._came_round(self._recorder.fetching())
        if self._steps > state.steps:
            self._batch_sizes.add(state.batch_size)
        state.requested(self._level(self._recorder.allocated()))
        if self._cuts(state, moment) and batches.minds_the_end(frame):
            return self._last_batches(loader, give, state)
        self._fetched += 1
        self._within_loop = False
        drawing = self._drawings.get(id(loader._dataset))
        drawing = drawing if drawing is not None and drawing.is_of(loader._dataset) else None
        try:
            batch = give(loader) if drawing is None else drawing.handed_over(give, loader, state)
        except StopIteration:
            if drawing is not None:
                drawing.ended()
            self._ended(loader, state)
            raise
        self._within_loop = True
        self._loader = state
        state.given_batches += 1
        state.note(batch, state.given_batches)
        if state.kind not in self._kinds_held or not self._fetched & (self._fetched - 1):
            self._kinds_held.add(state.kind)
            self._workers_hold(loader, batch)
        if drawing is not None:
            drawing.note(batch, self._alike, self._kinds > VARIED)
        return batch

    def _workers_hold(self, loader: Any, batch: Any) -> None:
        """Note what workers hold on the host: looked at after 1, 2, 4, … batches, as it grows, and
        at the first of a loader.
        """
        workers = [worker.pid for worker in getattr(loader, "_workers", ())]
        if workers:
            parts = [part for part in batches.tensors(batch) if not getattr(part, "is_cuda", True)]
            of_batch = sum(getattr(part, "nbytes", 0) for part in parts)
            on_the_way = (getattr(loader, "_prefetch_factor", None) or 1) * of_batch
            asked_workers = getattr(loader, "_xmem_asked", 0)
            self._recorder.drawn_by(workers, max(asked_workers, len(workers)), on_the_way)

    def _cuts(self, state: batches.Iteration, moment: float) -> bool:
        loops = self._epochs.known_loops()
        if self._cut_since is None or self._begun_again >= AGAIN:
            return False
        if self._steps > state.steps or loops.get(state.kind):
            return state.given_batches >= max(BATCHES, 2 * self._batches_a_step)
        if state.kind in loops and state.given_batches > batches.GROWING and not state.grows():
            return True
        return moment - max(state.began, self._cut_since) > EVALUATION

    def _last_batches(self, loader: Any, give: Function, state: batches.Iteration) -> Any:
        """Return the largest of the batches that are left, then end."""
        trains, loops = self._steps > state.steps, {*self._drawn, *self._epochs.known_loops()}
        if trains and state.kind not in loops:
            self._drawn[state.kind] = 0, 0
            batches.draw(loader, give, state, self.clock)
            self._largest_drawn(loader, state)  # the run may end with the next step
        if state.largest:
            state.given_batches += 1
            return state.largest.pop()
        self._ended(loader, state, cut=True)
        raise batches.CutShort

    def _ended(self, loader: Any, state: batches.Iteration, *, cut: bool = False) -> None:
        """A loop has ended, by itself or cut short: note what it says of the script, and add what
        was cut.
        """
        state.ended, of = True, batches.length(loader)
        trains = self._steps > state.steps
        self._epochs.reached(self._recorder.peak())
        self._epochs.ended(state.kind, trains, cut)
        self.observations["epochs"] = self._epochs.counts()
        if state.kind in self._epochs.known_loops():
            return
        if trains:
            self._largest_drawn(loader, state)
        else:
            self.observations["evaluation"] = state.given_batches, of
        if of is not None and state.given_batches < of and self._cut_since is not None:
            self._cut_short(state, of - state.given_batches)

    def _largest_drawn(self, loader: Any, state: batches.Iteration) -> None:
        """Note how many batches training has, and that only the largest of those that were drawn is
        known.

        A later epoch of a data set, cut shorter, says nothing that the epoch which drew did not,
        unless its are larger.
        """
        of, batch_count = batches.length(loader), max(loader._num_yielded, state.given_batches)
        drawn, largest = self._drawn.get(state.kind, (0, 0))
        if batch_count < drawn and state.records.largest <= largest:
            return
        if state.kind in self._drawn and batch_count >= drawn:
            self._drawn[state.kind] = batch_count, state.records.largest
        self.observations["batches"] = batch_count, of
        if (
            state.may_vary()
            and self._cut_since is not None
            and batch_count != of
            and not state.exhausted
        ):
            of_all = "" if of is None else " ({:,} in all)".format(of)
            # none was larger than the first
            short = state.records.short(batch_count, of) if len(state.sizes) > 1 else 0.0
            words = "{:,} batches read from the data loader{}".format(batch_count, of_all)
            self._doubt("largest-drawn", words, short)

    def _cut_short(self, state: batches.Iteration, unseen_batches: int) -> None:
        """Add what a loop that was cut short would have kept on the GPU for each batch that is
        left.
        """
        bytes_a_batch, level = state.grows(), self._recorder.allocated()
        trains = self._steps > state.steps
        words = "{:,} of {:,} batches".format(
            state.given_batches, state.given_batches + unseen_batches
        )
        loop = (
            "a loop over %s" % words if trains else "an evaluation, of which %s were seen," % words
        )
        if bytes_a_batch * unseen_batches > MATTERS * level:
            self._added.append(
                (level - bytes_a_batch, self._recorder.add(bytes_a_batch * unseen_batches))
            )
            self._doubt(
                "extrapolated",
                "%s left %s on the GPU for each; the rest is added" % (loop, _size(bytes_a_batch)),
            )
        elif not trains and len(state.sizes) > 1:
            self._doubt("not-reached", "of an evaluation all but %s" % words)

    def _level(self, allocated: int) -> int:
        """Take the bytes that are allocated; what was added to something that has been freed since,
        is freed.
        """
        for level, added in list(self._added):
            if allocated < level:
                self._added.remove((level, added))
                self._recorder.drop(added)
        return allocated

    # -- steps -------------------------------------------------------------------------------------

    def stepped(self, allocated: int, peak: int, met: bool, begins: bool) -> None:
        """Count an optimizer step, after which so many bytes are allocated, and were at the most.

        `met`: it was like an earlier one; `begins`: it was the first of its optimizer.
        """
        if self._steps and begins:
            self._phase("an optimizer's first step")
        elif self._began is not None and not met:
            self._phase("a step of another size")
        if not met or begins:
            self._newest = self._steps + 1
        self._levels = [*self._levels[-GROWING_STEPS:], self._level(allocated)]
        if self._steps % GROWING_STEPS == GROWING_STEPS - 1:
            self._floors = [*self._floors[-GROWING_STEPS:], min(self._levels)]
        self._unmet = [*self._unmet[1 - 4 * VARIED :], not met]
        self._kinds += not met
        self._came_round(met)
        if self._loader is not None:
            self._batches_a_step = max(self._batches_a_step, self._loader.stepped())
        self._fetched_at_step = self._fetched
        self._steps += 1
        self._epochs.stepped(met and not begins, peak)
        if self._steps == 1:
            self._began = self._cut_since = None  # what repeated itself before was something else
        self._peaks.note(self._steps, peak)

    def _came_round(self, met: bool) -> None:
        self._alike = self._alike + 1 if met else 0

    def _phase(self, sentence: str) -> None:
        if len(self.observations["phases"]) < PHASES:
            self.observations["phases"].append({"step": self._steps + 1, "what": sentence})

    def batch_size(self) -> int:
        """Return the samples in each batch of the data loaders that steps were made between; 0:
        none, or of several.
        """
        return next(iter(self._batch_sizes)) if len(self._batch_sizes) == 1 else 0

    def steady_steps(self) -> int:
        """Return after how many steps without a new peak training repeats itself."""
        return ALIKE_STEPS if self._brief and not any(self._unmet[-ALIKE_STEPS:]) else STEADY_STEPS

    def repeats(self) -> bool:
        """Whether training was seen to repeat itself."""
        return self._began is not None

    def enough(self, share: float) -> bool:
        """The script repeats itself, and `share` of its budget is spent: say whether the run can
        end; else go on.
        """
        moment = self.clock.now()
        if self._began is None:
            self._began = moment
        if self._cut_since is not None:
            return moment - self._cut_since > CUT and not self._goes_on()
        whole = self._share_alike if self._epochs.are_alike() else self._share
        # Without a sandbox `share` is of a time on the wall that is far behind, and the clock
        # counts alone.
        if not self._brief and share < whole and moment - self._started < whole * self._seconds:
            return False
        self._cut_since = moment
        if not self._brief:
            self._epochs.stop()
        for data, _ in self._epochs.known_loops():
            if data in self._drawings:
                self._drawings[data].give_again()
        # accelerate asks for one batch more before each step: at the last step of an epoch its loop
        # has ended.
        return (self._loader is None or self._loader.ended) and not self._goes_on()

    def ending(self) -> None:
        """The run is ended before the script: note what the rest of it may need beyond what was
        seen.
        """
        bytes_a_step = self._grown()
        if bytes_a_step:
            self._doubt("still-growing", "each step left %s more on the GPU" % _size(bytes_a_step))
        drawn = self._loader is not None and len(self._loader.sizes) > 1 and self._loader.drawn
        if sum(self._unmet) >= VARIED and not drawn:
            short = self._peaks.short(self._steps, None)
            text = "the shapes of steps differ; the largest of {:,} was seen".format(self._steps)
            self._doubt("varying", text, short)

    def _grown(self) -> int:
        """Return how many bytes more each of the last steps left on the GPU; 0 where that is none,
        or no matter.
        """
        for levels, steps in (
            (self._levels, 1),
            (self._floors, GROWING_STEPS),
        ):  # some leave more by turns, then less
            grown = [after - before for before, after in zip(levels, levels[1:])]  # noqa: B905, RUF007 - 3.9
            if len(grown) == GROWING_STEPS and min(grown) > 0:
                bytes_a_step = sum(grown) // len(grown) // steps
                return bytes_a_step if bytes_a_step * LONG > MATTERS * levels[-1] else 0
        return 0

    def overdue(self, moment: float) -> bool:
        """Whether what follows an epoch takes too long."""
        return (
            self._cut_since is not None
            and moment - self._cut_since > 2 * CUT
            and not self._goes_on()
        )

    def _goes_on(self) -> bool:
        """Whether a run whose loops were cut short goes on as long as it may."""
        return self._epochs.trusted or self._begun_again >= AGAIN

    def meant_to_train(self) -> bool:
        """Whether a job that made an optimizer did not evaluate all that it has: without a step it
        has failed.
        """
        return self._training or self._within_loop

    def evaluated_all(self) -> bool:
        """Whether a loop over a data loader without steps, of more than one batch, came to its
        end.
        """
        evaluated, of = self.observations["evaluation"] or (0, None)
        return evaluated > 1 and of in (None, evaluated)

    # -- what is told of it ------------------------------------------------------------------------

    def _doubt(self, code: str, detail: str, share: float | None = None) -> None:
        self._doubts[code, detail] = share

    def doubt(self, note: Note) -> None:
        """Say what was not seen, where the script has not come to its own end."""
        for (code, detail), share in self._doubts.items():
            note(code, detail, share=share)
        for drawing in self._drawings.values():
            if drawing.drawn < drawing.given_batches:
                words = "{:,} of {:,} batches read from the data loader, all of one shape"
                note("data-repeated", words.format(drawing.drawn, drawing.given_batches))
        if self._brief or self._began is None or (self.script_ended and self._cut_since is None):
            return
        if self.script_ended and self._epochs.stand_to_the_end(self._recorder.peak()):
            note("epochs-alike", self._epochs.words())
            return
        progress = "{:,} batches".format(self._fetched)
        if self._steps:
            progress = "{:,} steps".format(self._steps)
        new = ""
        if self._steps and not self._unmet[-1]:
            new = ", nothing new since step {:,}".format(self._newest)
        cut = ", with loops over data cut short from there on" if self.script_ended else ""
        note("not-reached", "the script's own end (%s seen%s%s)" % (progress, new, cut))

    def doubt_others(self, note: Note, world: int) -> None:
        """Say that other ranks, of `world` in all, may have larger batches, where steps show that
        batches differ.

        What the largest of so many times as many steps has more is told by how that of these grew:
        at least `VARIED` of them are the part that it grew from.
        """
        if self._kinds > VARIED:
            times = min(world, self._steps // VARIED)
            short = self._peaks.short(self._steps, times * self._steps)
            note("other-batches", "the largest of {:,}".format(self._steps), share=short)


def _size(size: int) -> str:
    return "%.1f MiB" % (size / (1 << 20)) if size >= 1 << 20 else "%d bytes" % size
