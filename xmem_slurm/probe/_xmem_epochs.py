"""Ends epochs early once training repeats itself, so that what comes after them is seen: evaluation, checkpoints.

Kernels cost nothing here, but an epoch of thousands of steps takes its time all the same. Once steps only repeat
themselves, every DataLoader ends after a few batches: the loop over it goes on as at the end of its data, evaluates,
saves, and begins the next epoch. When that one trains again, nothing new is to be expected.

A loader has no more workers than there are CPUs here: more of them only make the first batch wait for the others'.
"""

import importlib
import opcode
import os
import re
import sys

BATCHES = 3
"""What a DataLoader still gives, or as many as two optimizer steps took where that is more (gradient accumulation)."""
MORE_STEPS = 3
"""So many steps of the next epoch end the run: the first may find what evaluation left in the cache."""
LONGEST_SECONDS = 10.0
"""How long the end of an epoch may take, by `_xmem_clock`."""

_LOOPS = {opcode.opmap[name] for name in ("FOR_ITER", "SEND", "YIELD_FROM") if name in opcode.opmap}
"""What Python's loops and `yield from` take the next item by."""
_EVALUATION = re.compile(r"\.eval\(|\bno_grad\b|\binference_mode\b|\bevaluat|\bvalidat", re.IGNORECASE)


class Epochs:
    """The data loaders of a process, and what was seen of the script beyond its training steps."""

    def __init__(self):
        self._began = None
        self._fetched = 0
        self._fetched_at_step = 0
        self._batches_a_step = 1
        self._ended = False
        self._steps_after = 0
        self._evaluated = False
        self._training = True
        self._within_epoch = False

    def install(self, torch):
        """Count what data loaders give, and note whether the job ever evaluates."""
        loaders = importlib.import_module("torch.utils.data.dataloader")
        iterator, begin = loaders._BaseDataLoaderIter, loaders.DataLoader._get_iterator
        give, train = iterator.__next__, torch.nn.Module.train

        def begun(loader):
            loader.num_workers = min(loader.num_workers, len(os.sched_getaffinity(0)))
            return begin(loader)

        def noted_give(loader):
            enough = self._began is not None and loader._num_yielded >= max(BATCHES, 2 * self._batches_a_step)
            if enough and _minds_the_end(sys._getframe(1)):
                self._ended = True
                raise StopIteration
            self._fetched += 1
            self._within_epoch = False
            batch = give(loader)
            self._within_epoch = True
            return batch

        def noted_train(module, mode=True):
            self._evaluated, self._training = self._evaluated or not mode, mode
            return train(module, mode)

        loaders.DataLoader._get_iterator = begun
        iterator.__next__, torch.nn.Module.train = noted_give, noted_train

    def stepped(self):
        """Count an optimizer step."""
        self._batches_a_step = max(self._batches_a_step, self._fetched - self._fetched_at_step)
        self._fetched_at_step = self._fetched
        self._steps_after += self._ended

    def enough(self, now):
        """Training repeats itself: say whether nothing more is to be seen; else let the epoch end."""
        if self._began is None:
            self._began = now
        return not self._fetched or self._steps_after >= MORE_STEPS or self.overdue(now)

    def meant_to_train(self):
        """Whether a job that made an optimizer did not evaluate all that it has: without a step it has failed."""
        return self._training or self._within_epoch

    def repeats(self):
        """Whether training was seen to repeat itself."""
        return self._began is not None

    def overdue(self, now):
        """Whether the end of the epoch has taken too long."""
        return self._began is not None and now - self._began > LONGEST_SECONDS

    def doubts(self, ended_well):
        """Say so if the script speaks of evaluation, and none was seen before the run was ended or stopped."""
        seen = self._evaluated or (self._ended and (ended_well or self._steps_after))
        if self._began is None or seen or not _EVALUATION.search(_script()):
            return []
        return [
            {"code": "evaluation", "detail": "the script evaluates, and the run was ended before it did", "count": 1}
        ]


def _minds_the_end(frame):
    """Whether what asks for a batch, in this frame, heeds the end of the data: a loop, or who names StopIteration.

    `for step in range(len(loader)): batch = next(batches)` would die of it.
    """
    code = frame.f_code
    return code.co_code[frame.f_lasti] in _LOOPS or "StopIteration" in code.co_names


def _script():
    """Return the text of the script, or nothing."""
    try:
        with open(os.path.abspath(sys.modules["__main__"].__file__), encoding="utf-8", errors="replace") as file:
            return file.read()
    except (AttributeError, KeyError, OSError):
        return ""
