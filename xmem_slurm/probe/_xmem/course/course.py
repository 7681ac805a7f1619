"""How far a run goes: to the script's own end if that is near, else through all that its loops can do, once.

Kernels cost nothing here, so a run does not stop where its steps repeat themselves; it runs on, in this order:

1. as it is, until the script ends, or until nothing is ahead that was not seen (`course/ahead`), or for a while
   (`RUN_ON`), or longer where what is ahead is near (`REACH`);
2. with its data loaders cut short: a loop over one in which steps were made ends as at the end of its data, and what
   follows (evaluation, checkpoint, the next epoch) comes at once. A loop without steps is an evaluation: it runs in
   full, unless it takes too long, and then what it kept on the GPU by batch is added for the batches that were cut;
3. for so long (`CUT`), then the run ends.

A brief run (XMEM_BRIEF) is of a job that was run before, but for how it trains: it goes to 2. at once.

Before a loader is cut, what it would still give is drawn, and the largest batch is trained on: lengths vary.
A loader has no more workers than there are CPUs here: more of them only make the first batch wait for the others'.
All seconds are those of `process/clock`.
"""

import functools
import os
import sys

from _xmem import doubts
from _xmem.course import ahead, batches
from _xmem.process import clock
from _xmem.process.steps import ALIKE_STEPS, STEADY_STEPS

AT_LEAST = 0.5
"""A run goes on for so long after its steps repeat themselves: the script's source does not say all..."""
RUN_ON = 2.0
"""...and for so long where something is ahead, or..."""
RUN_ON_SHARE = 0.3
"""...for this share of what it took so far: who waited 20 seconds for a model to load has six for its training."""
REACH = 15.0
"""What comes within so long is waited for."""
CUT = 10.0
"""How long a run may take with its loaders cut short, and..."""
EVALUATION = 5.0
"""...of that one loop without steps."""
LOOK_EVERY = 0.5
MOST_TOLD = 4
"""Of what was not seen, so much is told."""
PHASES = 16
"""So many changes of what a step does are told."""
BATCHES = 3
"""What a loader that is cut short still gives, or as many as two optimizer steps took (gradient accumulation)."""
GROWING_STEPS = 16
"""After so many steps that each left more bytes allocated, the rest of them is taken to do so, too."""
LONG = 100_000
"""So many steps are taken for the rest of a loop whose end is not known, to tell whether what grows matters..."""
MATTERS = 0.02
"""...which is where it would add this share of what is allocated."""
_OF_ITERATORS = ("_collate_fn", "_dataset", "_num_yielded")
"""What is read of a loader's iterator (torch/utils/data/dataloader.py, 2.4 to 2.15)."""
VARIED = 8
"""Steps vary where this many of the last four times as many were of kinds that had not been met before."""


class Course:
    """The way of one process. `recorder` is told of batches and of what is to be added; see `record/recorder`."""

    def __init__(self, recorder, brief=False):
        self._recorder, self._brief = recorder, brief
        self._started = clock.now()
        self._began = self._cut_since = self._looked = None
        self._steps = self._fetched = self._fetched_at_step = 0
        self._batches_a_step = 1
        self._loader = None  # the iteration that gave the last batch
        self._added = []  # (level below which it is gone, what the recorder calls it) of what was added
        self._drawn = {}  # kind of iteration: how many batches of it were drawn, and bytes of the largest
        self._batch_sizes = set()  # of loaders that training draws from
        self._levels = []  # bytes allocated after each of the last steps
        self._unmet = []  # whether each of the last steps was of a kind not met before
        self._peaks = batches.Records()
        self._outlook = None
        self._training, self._within_loop = True, False
        self.seen = {"evaluation": None, "checkpoints": 0, "batches": None, "phases": []}
        """What was seen, as in a trace."""
        self.script_ended = False
        """Whether the script came to its own end."""
        self._doubts = {}

    # -- what takes the place of torch's own (`patches`): data loaders, what switches to evaluation, checkpoints -------

    def begun(self, begin, _loader_class):
        """A data loader has no more workers than there are CPUs."""

        def begun(loader):
            loader.num_workers = min(loader.num_workers, len(os.sched_getaffinity(0)))
            return begin(loader)

        return begun

    def given(self, give, _iterator_class):
        """Each batch comes through here, unless this torch's iterators have other names for what is asked of them."""

        def noted_give(loader):
            missing = [name for name in _OF_ITERATORS if not hasattr(loader, name)]
            if missing:
                doubts.note("hook-missing", "no %s of a data loader's iterator in this release" % missing[0])
            return give(loader) if missing else self._give(loader, give, sys._getframe(1))

        return noted_give

    def trained(self, train, _module_class):
        """A model is switched to training or evaluation."""

        def noted_train(module, mode=True):
            if not mode and self.seen["evaluation"] is None:
                self.seen["evaluation"] = 0, None
            if mode != self._training and self._steps:
                self._recorder.mark("training" if mode else "evaluation")
            self._training = mode
            if not mode:
                self._recorder.says("evaluating")
            return train(module, mode)

        return noted_train

    def saved(self, save, _torch):
        """A checkpoint is written."""

        @functools.wraps(save)
        def noted_save(*args, **kwargs):
            if self._steps:
                self.seen["checkpoints"] += 1
                self._recorder.mark("checkpoint")
            return save(*args, **kwargs)

        return noted_save

    # -- batches -------------------------------------------------------------------------------------------------------

    def _give(self, loader, give, frame):
        """Give the next batch to a loop in `frame`, or end it where the loader is cut short."""
        now = clock.now()
        state = loader.__dict__.setdefault("_xmem_iteration", None)
        if state is None or state.ended or loader._num_yielded == 0:
            state = loader._xmem_iteration = batches.Iteration(loader, self._steps)
        if self._fetched_at_step != self._fetched or not self._steps:
            self._recorder.fetching(frame)
        if self._steps > state.steps:
            self._batch_sizes.add(state.batch_size)
        state.asked(self._level(self._recorder.allocated()))
        if self._cuts(state, now) and batches.minds_the_end(frame):
            return self._last_batches(loader, give, state)
        self._fetched += 1
        self._within_loop = False
        try:
            batch = give(loader)
        except StopIteration:
            self._ended(loader, state)
            raise
        self._within_loop = True
        self._loader = state
        state.given += 1
        state.note(batch, state.given)
        return batch

    def _cuts(self, state, now):
        if self._cut_since is None:
            return False
        if self._steps > state.steps:
            return state.given >= max(BATCHES, 2 * self._batches_a_step)
        return now - max(state.began, self._cut_since) > EVALUATION

    def _last_batches(self, loader, give, state):
        """Return the largest of the batches that are left, then end."""
        if self._steps > state.steps and state.kind not in self._drawn:
            self._drawn[state.kind] = 0, 0
            batches.draw(loader, give, state)
            self._largest_drawn(loader, state)  # the run may end with the next step
            for each in () if state.exhausted or self._outlook is None else self._outlook.fed:
                self._doubt("not-reached", _told(each))
        if state.largest:
            state.given += 1
            return state.largest.pop()
        self._ended(loader, state)
        raise StopIteration

    def _ended(self, loader, state):
        state.ended, of = True, batches.length(loader)
        if self._steps > state.steps:
            self._largest_drawn(loader, state)
        else:
            self.seen["evaluation"] = state.given, of
        if of is not None and state.given < of and self._cut_since is not None:
            self._cut_short(state, of - state.given)

    def _largest_drawn(self, loader, state):
        """Note how many batches training has, and that only the largest of those that were drawn is known.

        A later epoch of a data set, cut shorter, says nothing that the epoch which drew did not, unless its are larger.
        """
        of, seen = batches.length(loader), max(loader._num_yielded, state.given)
        drawn, largest = self._drawn.get(state.kind, (0, 0))
        if seen < drawn and state.records.largest <= largest:
            return
        if state.kind in self._drawn and seen >= drawn:
            self._drawn[state.kind] = seen, state.records.largest
        self.seen["batches"] = seen, of
        if state.may_vary() and self._cut_since is not None and seen != of and not state.exhausted:
            of_all = "" if of is None else " of {:,}".format(of)
            short = state.records.short(seen, of) if len(state.sizes) > 1 else 0.0  # none was larger than the first
            differ = "differ" if len(state.sizes) > 1 else "may differ"
            drawn = "batches %s in size, and the largest of {:,} batches drawn{}" % differ
            self._doubt("largest-drawn", drawn.format(seen, of_all), short)

    def _cut_short(self, state, left):
        """Add what a loop that was cut short would have kept on the GPU for each batch that is left."""
        each, level = state.grows(), self._recorder.allocated()
        trains, seen = self._steps > state.steps, "{:,} of {:,} batches".format(state.given, state.given + left)
        loop = "a loop over %s" % seen if trains else "an evaluation, of which %s were seen," % seen
        if each * left > MATTERS * level:
            self._added.append((level - each, self._recorder.add(each * left)))
            self._doubt("extrapolated", "%s left %s on the GPU for each; the rest is added" % (loop, _size(each)))
        elif not trains and len(state.sizes) > 1:
            self._doubt("not-reached", "of an evaluation all but %s" % seen)

    def _level(self, allocated):
        """Take the bytes that are allocated; what was added to something that has been freed since, is freed."""
        for level, added in list(self._added):
            if allocated < level:
                self._added.remove((level, added))
                self._recorder.drop(added)
        return allocated

    # -- steps ---------------------------------------------------------------------------------------------------------

    def stepped(self, allocated, peak, met, begins):
        """Count an optimizer step, after which so many bytes are allocated, and were at the most.

        `met`: it was like an earlier one; `begins`: it was the first of its optimizer.
        """
        if self._steps and begins:
            self._phase("an optimizer's first step")
        elif self._began is not None and not met:
            self._phase("a step of another size")
        self._levels = [*self._levels[-GROWING_STEPS:], self._level(allocated)]
        self._unmet = [*self._unmet[1 - 4 * VARIED :], not met]
        self._batches_a_step = max(self._batches_a_step, self._fetched - self._fetched_at_step)
        self._fetched_at_step = self._fetched
        self._steps += 1
        if self._steps == 1:
            self._began = self._cut_since = None  # what repeated itself before was something else
        self._peaks.note(self._steps, peak)

    def _phase(self, what):
        if len(self.seen["phases"]) < PHASES:
            self.seen["phases"].append({"step": self._steps + 1, "what": what})

    def batch_size(self):
        """Return the samples in each batch of the data loaders that steps were made between; 0: none, or of several."""
        return next(iter(self._batch_sizes)) if len(self._batch_sizes) == 1 else 0

    def steady_steps(self):
        """Return after how many steps without a new peak training repeats itself."""
        return ALIKE_STEPS if self._brief and not any(self._unmet[-ALIKE_STEPS:]) else STEADY_STEPS

    def repeats(self):
        """Whether training was seen to repeat itself."""
        return self._began is not None

    def enough(self, frame, now, alone, waits):
        """Training repeats itself: say whether the run can end; else go on. `frame` is that of the step.

        `alone` and `waits` are whether this is the only rank, and whether an optimizer is still to make its first step.
        """
        if self._began is None:
            self._began, self._began_steps, self._began_fetched = now, self._steps, self._fetched
        spent = now - self._began
        out_of_time = self._cut_since is not None and now - self._cut_since > CUT
        due = self._outlook is None or out_of_time or now - self._looked >= LOOK_EVERY
        if waits or (spent < AT_LEAST and not self._brief) or not due:
            return False
        self._look(frame, now, alone)
        loops = self._loader is not None and not self._loader.ended
        changes = loops and self._loader.may_vary() and self._loader.kind not in self._drawn
        grows = (loops and self._loader.grows()) or (self._steps and self._grown())
        varies = not loops and sum(self._unmet) >= VARIED
        if self._outlook.certain and not self._outlook.unseen and not (changes or grows or varies):
            return True
        natural = 0.0 if self._brief else max(RUN_ON, RUN_ON_SHARE * (self._began - self._started))
        if varies or (self._steps and self._grown()):
            natural = REACH
        waits = not self._brief and spent + self._next(spent) < REACH
        if self._cut_since is None and spent >= natural and not waits:
            self._cut_since = now
            return not loops
        return out_of_time

    def _next(self, spent):
        """Return the seconds until something comes that was not seen, as far as that can be told."""
        near = [each.iterations for each in self._outlook.unseen if each.inner and each.iterations]
        rounds = max(1, self._steps - self._began_steps, self._fetched - self._began_fetched)
        return min(near, default=float("inf")) * spent / rounds

    def _look(self, frame, now, alone):
        self._looked = now
        evaluated, saved = self.seen["evaluation"] is not None, self.seen["checkpoints"] > 0
        level = self._recorder.allocated()
        self._outlook = ahead.look(frame, alone, evaluated, saved, self._steps, allocated=level)

    def ending(self):
        """The run is ended before the script: note what the rest of it may need beyond what was seen."""
        left, each = self._left(), self._grown()
        if each and left is None:
            self._doubt("still-growing", "each step left %s more on the GPU" % _size(each))
        elif each:
            self._recorder.add(each * left)
            text = "each step left {} more on the GPU; that is added for the other {:,} steps"
            self._doubt("extrapolated", text.format(_size(each), left))
        drawn = self._loader is not None and len(self._loader.sizes) > 1 and self._loader.drawn
        if sum(self._unmet) >= VARIED and not drawn:
            of = "" if left is None else " of {:,}".format(self._steps + left)
            short = self._peaks.short(self._steps, None if left is None else self._steps + left)
            self._doubt(
                "varying", "the shapes of steps differ; the largest of {:,}{} was seen".format(self._steps, of), short
            )

    def _grown(self):
        """Return how many bytes more each of the last steps left on the GPU; 0 where that is none, or no matter."""
        grown = [after - before for before, after in zip(self._levels, self._levels[1:])]  # noqa: B905 - Python 3.9
        if len(grown) < GROWING_STEPS or min(grown) <= 0:
            return 0
        each, left = sum(grown) // len(grown), self._left()
        return each if each * (LONG if left is None else left) > MATTERS * self._levels[-1] else 0

    def _left(self):
        """Return how many steps are still to come by the loops of the script; None where that is not known."""
        loops = self._outlook.loops if self._outlook is not None else ()
        if not loops or not self._outlook.certain:
            return None
        done = of = 0
        for _, loop_done, loop_of in reversed(loops):
            if not loop_done or not loop_of:
                return None
            done, of = (done - (done > 0)) * loop_of + loop_done, max(1, of) * loop_of
        return max(0, of - done) // self._batches_a_step

    def overdue(self, now):
        """Whether what follows an epoch takes too long."""
        return self._cut_since is not None and now - self._cut_since > 2 * CUT

    def meant_to_train(self):
        """Whether a job that made an optimizer did not evaluate all that it has: without a step it has failed."""
        return self._training or self._within_loop

    def evaluated_all(self):
        """Whether a loop over a data loader without steps, of more than one batch, came to its end."""
        evaluated, of = self.seen["evaluation"] or (0, None)
        return evaluated > 1 and of in (None, evaluated)

    # -- what is told of it --------------------------------------------------------------------------------------------

    def _doubt(self, code, detail, share=None):
        self._doubts[code, detail] = share

    def doubt(self, note):
        """Say what was not seen, where the script has not come to its own end."""
        for (code, detail), share in self._doubts.items():
            note(code, detail, share=share)
        if self.script_ended or self._began is None:
            return
        unseen = {} if self._outlook is None else {(each.where, each.what): each for each in self._outlook.unseen}
        for each in list(unseen.values())[:MOST_TOLD]:
            note("seen-early" if each.early else "not-reached", _told(each))
        if not unseen and (self._outlook is None or not self._outlook.certain):
            note("not-reached", "the end of the script")

    def loops(self):
        """Return the script's loops and how far they are, as last looked at."""
        loops = self._outlook.loops if self._outlook is not None else ()
        return [{"where": where, "done": done, "of": of} for where, done, of in reversed(loops)]


def _told(unseen):
    return "%s (%s%s)" % (unseen.what, unseen.where, _later(unseen.iterations))


def _later(iterations):
    return ", {:,} iterations later".format(iterations) if iterations else ""


def _size(size):
    return "%.1f MiB" % (size / (1 << 20)) if size >= 1 << 20 else "%d bytes" % size
