"""The batches of one loop over a data loader: what was given, how they differ in size, what the
largest is.
"""

from __future__ import annotations

import opcode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from _xmem.annotations import Function, Tensor
    from _xmem.course.drawing import Batch
    from _xmem.process.clock import Clock

DRAW, DRAW_MORE = 1.0, 5.0
"""How long batches are drawn without training: where all are of one size, and where they are
not."""
PARTS = 16
"""So many elements of a list are asked whether they are words."""
GROWING = 4
"""After so many batches that each left more bytes allocated, the rest of them is taken to do so,
too."""
_LOOPS = {opcode.opmap[name] for name in ("FOR_ITER", "SEND", "YIELD_FROM") if name in opcode.opmap}
"""What Python's loops and `yield from` take the next item by."""


class CutShort(StopIteration):
    """The end of data that would have gone on."""


class Records:
    """How the largest of a series grew: what its length says of how large the next ones may be."""

    def __init__(self) -> None:
        # (number, size) of each that was the largest so far
        self._records: list[tuple[int, int]] = [(0, 0)]

    def note(self, number: int, size: int) -> None:
        """Take the size of one of the series."""
        if size > self._records[-1][1]:
            self._records.append((number, size))

    @property
    def largest(self) -> int:
        """The size of the largest so far."""
        return self._records[-1][1]

    def short(self, number: int, of: int | None) -> float:
        """Return by what share the largest of `number` exceeds that of the part of them that they
        are `of` all.

        Who had looked at that part only would have been too low by so much; of all half, where `of`
        is not known.
        """
        part = number * (min(1.0, number / of) if of else 0.5)
        before = max((size for place, size in self._records if place <= part), default=0)
        return self._records[-1][1] / before - 1 if before else 1.0


class Iteration:
    """One loop over a data loader: `given_batches` batches so far, of sizes `sizes`, between them
    `steps` optimizer steps.
    """

    kept: Batch | None
    since: int
    passes: bool

    def __init__(self, loader: Any, steps: int, moment: float) -> None:
        self._collate = loader._collate_fn
        self.kind = id(loader._dataset), length(loader)
        """What tells data sets apart, and sizes of batches."""
        self.batch_size = _batch_size(loader)
        self.began, self.steps = moment, steps
        self.given_batches = self.drawn = self._stepped = 0
        self.sizes: set[tuple[tuple[int, ...], ...]] = set()
        self.largest: list[Any] = []  # batches that were drawn, still to be given
        self.records = Records()
        self._allocated: list[int] = []  # bytes, before each of the last batches
        self.ended = self.exhausted = False
        self.kept, self.since, self.passes = None, 0, self.batch_size > 0
        """The last batch that workers handed over, how often it was given since, and whether more
        may be: `drawing`."""

    def may_vary(self) -> bool:
        """Whether batches differ in size, or may: torch's own collate_fn only takes samples of one
        size at a time.
        """
        return len(self.sizes) > 1 or not is_of_torch(self._collate)

    def stepped(self) -> int:
        """A step was made; return how many batches were given for it."""
        since, self._stepped = self.given_batches - self._stepped, self.given_batches
        return since

    def requested(self, allocated: int) -> None:
        """A batch is asked for, with so many bytes allocated."""
        self._allocated = [*self._allocated[-GROWING:], allocated]

    def grows(self) -> int:
        """Return how many bytes more each of the last batches left on the GPU; 0 where not all of
        them did.
        """
        grown = [after - before for before, after in zip(self._allocated, self._allocated[1:])]  # noqa: B905 - 3.9
        return sum(grown) // len(grown) if len(grown) == GROWING and min(grown) > 0 else 0

    def note(self, batch: Any, number: int) -> int:
        """Note batch `number`; return its bytes."""
        parts = list(tensors(batch))
        size = sum(part.numel() * part.element_size() for part in parts)
        self.sizes.add(tuple(tuple(part.shape) for part in parts))
        self.records.note(number, size)
        return size


def draw(loader: Any, give: Function, state: Iteration, clock: Clock) -> None:
    """Draw what is left of an iteration without training on it; keep the largest batch."""
    began, largest, largest_size = clock.now(), None, 0
    while True:
        if clock.now() - began > (DRAW_MORE if state.may_vary() else DRAW):
            break
        try:
            batch = give(loader)
        except StopIteration:
            state.exhausted = True
            break
        state.drawn += 1
        size = state.note(batch, state.given_batches + state.drawn)
        if size > largest_size:
            largest, largest_size = batch, size
    state.drawn = state.drawn or 1
    if largest is not None and len(state.sizes) > 1:
        state.largest.append(largest)


def minds_the_end(frame: FrameType) -> bool:
    """Whether what asks for a batch, in this frame, heeds the end of the data: a loop, or who names
    StopIteration.

    `for step in range(len(loader)): batch = next(batches)` would die of it.
    """
    code = frame.f_code
    return code.co_code[frame.f_lasti] in _LOOPS or "StopIteration" in code.co_names


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in lists, tuples, dicts and what has their form."""
    if hasattr(batch, "numel") and hasattr(batch, "shape"):
        yield batch
    elif hasattr(batch, "values") and hasattr(batch, "keys"):
        for part in batch.values():
            yield from tensors(part)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from tensors(part)
    elif hasattr(batch, "__dict__"):  # a graph's batch, a dataclass
        for part in vars(batch).values():
            if hasattr(part, "numel") and hasattr(part, "shape"):
                yield part


def has_words(batch: Any) -> bool:
    """Whether there is text in a batch: in dicts, and in the first elements of lists and tuples."""
    if isinstance(batch, dict):
        return any(map(has_words, batch.values()))
    return isinstance(batch, str) or (
        isinstance(batch, (list, tuple)) and any(map(has_words, batch[:PARTS]))
    )


def shapes_of_samples(batch: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a batch's tensors, without the number of samples if that is the first
    length of all.
    """
    shapes = [tuple(tensor.shape) for tensor in tensors(batch)]
    alike = len({shape[:1] for shape in shapes}) == 1 and shapes[0]
    return tuple(shape[1:] if alike else shape for shape in shapes)


def is_of_torch(collate: object) -> bool:
    """Whether a collate_fn is torch's own."""
    return getattr(collate, "__module__", "").startswith("torch.utils.data")


def _batch_size(loader: Any) -> int:
    """Return the samples in a batch of a loader's iterator, of this process alone; 0: its sampler
    has no such size.
    """
    sampler: Any = getattr(loader, "_index_sampler", None)
    size = getattr(sampler, "batch_size", None)
    if not isinstance(size, int):
        return 0
    # accelerate's: each process gets its part of a batch
    splits = getattr(sampler, "split_batches", False)
    return size // sampler.num_processes if splits else size


def length(sized: Any) -> int | None:
    """Return how many batches an iteration has, or samples a data set; None where that is not
    known.
    """
    try:
        return len(sized)
    except Exception:  # an IterableDataset has none, and a script's own sampler may have none
        return None
