"""Where data take the time, and all batches were of one shape, most of the rest are given again and
not drawn.

Note [Drawn again]: a script's own data pipeline runs as it is, and for pictures that are decoded
that is most of what a dry run costs. Once enough of a data set was of one shape, and drawing it
took `SECONDS`, only each `EACH`th batch is drawn, later so many that a change is found before
`SHARE` more have been given, and each is given again until the next one is. `EACH` is for the first
time that a loop goes through the data, which may be sorted by length; later ones are taken to be
like it. Enough is `SAME` batches that the script puts together itself, or `PASSES` times the
samples of a smaller data set. torch's own collate_fn takes samples of one size alone and fails
where two differ: there enough is `SAMPLES` of them, or as many as a smaller data set has. It is
`FEW` batches at least. Samplers and counts of batches are as they are. The first one of each loop
is drawn, and so is the first of another number of samples, such as the last of a loop. Of what
torch puts together one sample of a batch tells its shape: no more of it is drawn where there is one
to give again. With the first batch of another shape all are drawn from there on. Never is one given
again of a data set that keeps count of something itself, or that was changed since by the script;
that has words (a file's name), as a script may keep something by them; or where steps differ though
batches do not: the script goes by what is in them, as one that trims each to its longest text.

What workers draw torch hands over by pipes and threads, which takes longer than a step that is
skipped. So where batches are given again, most are not asked of workers at all; the sampler is
asked for their indices all the same. A loop has as many batches as ever, and those that workers
have in hand come at its end.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import mmap
import multiprocessing
import struct
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem.course import batches

if TYPE_CHECKING:
    from _xmem.annotations import Function, Tensor
    from _xmem.course.batches import Iteration

SAME = 2_000
SAMPLES, FEW = 2_048, 8
PASSES = 2
ALIKE = 32
"""So many steps in a row, or batches without one, were of kinds met before, or as many as are
enough if those are fewer."""
SECONDS, SECONDS_OWN = 2.0, 5.0
"""CPU time of drawing them, in all processes; where the script puts them together, and may pad what
is rarely long."""
EACH, SHARE = 16, 64
"""A batch is drawn after so many that were given again, and after a 64th of all that ever were if
that is more; once a loop has come to its end, after 64."""
NUMBERS = 4
"""Batches of so many kinds are kept."""
_OF_WORKERS = (
    "_workers",
    "_dataset_kind",
    "_auto_collation",
    "_next_index",
    "_sampler_iter",
    "_num_yielded",
)
"""What is read of an iterator over batches that workers draw (torch/utils/data/dataloader.py, 2.4
to 2.15)."""
_BY_INDEX = 0
"""The kind of a data set that gives the samples of an index (`_DatasetKind.Map` there)."""
_FORMS = "??????dqq"
"""Of the fields of `Shared`, in their order (struct)."""
_SHARED = struct.Struct("=" + _FORMS)


class Shared(NamedTuple):
    """What processes share of a data set, in the form `_FORMS`."""

    again: bool
    """Whether batches are given again."""
    counts: bool
    """Whether it keeps count of something..."""
    checked: bool
    """...and whether that was checked."""
    kept: bool
    """Whether workers are asked for those batches alone that are to be drawn."""
    asks: bool
    """Whether a worker asks who it is."""
    whole: bool
    """Whether a loop has come to its end."""
    seconds: float
    """How long it took to draw batches."""
    repeated: int
    """How many were given again."""
    drawn: int
    """How many were drawn."""

    def is_due(self, since: int) -> bool:
        """Whether the next is to be drawn, after so many that were given again."""
        return since >= max(SHARE if self.whole else EACH, self.repeated // SHARE)


_PLACES = {
    name: ("=" + _FORMS[number], struct.calcsize("=" + _FORMS[:number]))
    for number, name in enumerate(Shared._fields)
}
"""The form of each, and where it lies. One is written and the others are not: another process may
just change them."""
_SIMPLE = (bool, int, float, str, type(None))
MOST_PLAIN = 16
"""Of so many elements an attribute of a data set may be that is looked at."""


class Drawing:
    """The batches of the data set of a loader, in any number of loops.

    Raises:
        TypeError: nothing can be noted of it: it is a list.
    """

    _shapes: set[tuple[tuple[int, ...], ...]]
    _attributes: list[tuple[str, Any]] | None

    def __init__(self, loader: Any) -> None:
        # accelerate gives a sampler
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        own_collate = not batches.is_of_torch(loader.collate_fn)
        samples = size if isinstance(size, int) else 1
        self._dataset = weakref.ref(loader.dataset)
        passes, limit = (PASSES, SAME) if own_collate or samples == 1 else (1, SAMPLES // samples)
        size = batches.length(loader.dataset)  # a sampler may pass over a part of it at a time
        self._seconds = SECONDS_OWN if own_collate else SECONDS
        self._needed = max(FEW, limit if size is None else min(limit, -(-passes * size // samples)))
        self._shared = mmap.mmap(-1, _SHARED.size)  # of all workers, as they are forked
        self._shapes, self._attributes = set(), None
        # by what puts them together and by samples, those that this process has drawn last
        self._batches: dict[tuple[int, int], Batch] = {}
        self._since = 0  # batches that this process has given again since it drew one
        self._has_words = self._steps_differ = False
        self.given_batches = 0
        """Batches that the script got."""
        self.on_host = False
        """Whether the last of them had nothing on the GPU."""

    def is_of(self, dataset: object) -> bool:
        """Whether it is the one of this data set."""
        return self._dataset() is dataset

    @property
    def gives_again(self) -> bool:
        """Whether batches are given again."""
        return self._state().again

    def ended(self) -> None:
        """A loop has come to its end."""
        self._change(whole=True)

    def needs_workers(self, loader: Any) -> bool:
        """Whether it may ask a worker who that is; what others than forked ones do is not known
        here.
        """
        context = loader.multiprocessing_context or multiprocessing
        start = context.get_start_method(allow_none=True)
        forks = start == "fork" or (start is None and sys.version_info < (3, 14))
        return bool(loader.worker_init_fn or loader.timeout or self._state().asks or not forks)

    def may_have_asked(self) -> None:
        """It may have been this data set that asked."""
        self._change(asks=True)

    @property
    def drawn(self) -> int:
        """How many batches were drawn of those that were given; workers may have drawn more."""
        state = self._state()
        return min(state.drawn, self.given_batches) if state.repeated else self.given_batches

    def note(self, batch: Any, alike: int, differ: bool) -> None:
        """The script gets a batch; so many steps, or batches without one, were like earlier ones in
        a row; `differ`: its steps did so far.
        """
        self._shapes.add(batches.shapes_of_samples(batch))
        self._has_words, self._steps_differ = self._has_words or batches.has_words(batch), differ
        self.given_batches += 1
        self.on_host = not any(
            getattr(tensor, "is_cuda", False) for tensor in batches.tensors(batch)
        )
        state, is_steady = self._state(), alike >= min(self._needed, ALIKE)
        if state.again or (
            is_steady and self.given_batches > self._needed and state.seconds > self._seconds
        ):
            self.give_again()

    def give_again(self) -> None:
        """From here on batches are given again, however soon that is, unless there is something
        against it.
        """
        alike = len(self._shapes) == 1 and not self._steps_differ and not self._has_words
        self._change(again=alike and self.on_host and not self._state().counts)

    def fetch(self, fetch: Function, fetcher: Any, index: Any) -> Any:
        """Draw a batch, or return the one before; this may be in a worker."""
        count = fetcher.__dict__["_xmem_fetched"] = fetcher.__dict__.get("_xmem_fetched", 0) + 1
        state, before = self._state(), None
        if state.again:
            before = attributes(self._dataset())
            must_look = state.kept and is_worker()
            key = id(fetcher.collate_fn), len(index)
            kept = self._batches.get(key) if before == self._attributes else None
            looks = must_look or count == 1 or state.is_due(self._since)
            if (
                kept is not None
                and kept.is_as_it_was()
                and (not looks or self._is_alike(fetch, fetcher, index, kept))
            ):
                self._since = 0 if looks else self._since + 1
                self._spent(repeated=1)
                return kept.again(index)
        self._since, began = 0, time.thread_time()
        batch = fetch(fetcher, index)
        self._spent(time.thread_time() - began, drawn=1)
        if state.again:
            if before != self._attributes or len(self._batches) == NUMBERS:
                self._batches.clear()
            self._attributes, self._batches[key] = before, Batch(batch, index)
            counts = attributes(self._dataset()) != before
            self._change(again=not counts, counts=counts, checked=True)
        return batch

    def _is_alike(self, fetch: Function, fetcher: Any, index: Any, kept: Batch) -> bool:
        """Whether the first of some samples that torch would put together has the shapes of those
        in `kept`.
        """
        if not batches.is_of_torch(fetcher.collate_fn) or not isinstance(index, (list, tuple)):
            return False
        began = time.thread_time()
        sample = fetch(fetcher, index[:1])
        self._spent(time.thread_time() - began)
        return batches.shapes_of_samples(sample) == kept.shapes

    def handed_over(self, give: Function, loader: Any, loop: Iteration) -> Any:
        """Return the next batch of an iterator over a loader; `loop` has the last that workers
        gave.
        """
        has_names = all(hasattr(loader, name) for name in _OF_WORKERS)
        if not has_names or loader._dataset_kind != _BY_INDEX or not loader._auto_collation:
            return give(loader)
        state = self._state()
        again = state.again and state.checked and self.on_host and loop.passes
        if again and loop.kept is not None and not state.is_due(loop.since):
            kept = loop.kept.is_as_it_was()
            self._change(kept=kept)  # a script may write to its batches
            if kept and _is_passed(loader, loop):
                loop.since += 1
                loader._num_yielded += 1
                self._spent(repeated=1)
                return loop.kept.again()
        began = time.process_time()  # of all threads: some of them only take over what workers give
        batch = give(loader)
        self._spent(time.process_time() - began)
        loop.kept, loop.since = Batch(batch) if again else None, 0
        return batch

    def _spent(self, seconds: float = 0.0, repeated: int = 0, drawn: int = 0) -> None:
        state = self._state()
        added = {"seconds": seconds, "repeated": repeated, "drawn": drawn}
        self._change(
            **{name: getattr(state, name) + amount for name, amount in added.items() if amount}
        )

    def _state(self) -> Shared:
        return Shared(*_SHARED.unpack(self._shared))

    def _change(self, **changed: float) -> None:
        for name, value in changed.items():
            form, place = _PLACES[name]
            struct.pack_into(form, self._shared, place, value)


def _is_passed(loader: Any, loop: Iteration) -> bool:
    """Whether the indices that the sampler gives next are passed over; after another number of them
    none are.
    """
    try:
        index = loader._next_index()
    except StopIteration:
        return False
    loop.passes = isinstance(index, (list, tuple)) and len(index) == loop.batch_size
    if not loop.passes:
        loader._sampler_iter = itertools.chain([index], loader._sampler_iter)
    return loop.passes


class Batch:
    """One that is given again: its tensors themselves, as long as nobody writes to them.

    Where its samples say which they are, by the `index` of each, it has those of the samples that
    it stands for.
    """

    def __init__(self, batch: Any, index: Any = ()) -> None:
        tensors = [tensor for tensor in batches.tensors(batch) if hasattr(tensor, "_version")]
        self._tensors = [(tensor, _written(tensor)) for tensor in tensors]
        self._numbers = [tensor for tensor in tensors if _is_index(tensor, index)]
        self.shapes = batches.shapes_of_samples(batch)
        try:
            self._batch = self._in_containers(batch, {})  # the script may take its own apart
        except Exception:  # a class of the script's
            self._batch = None

    def is_as_it_was(self) -> bool:
        """Whether it can be given again: nobody has written to it."""
        return self._batch is not None and all(
            _written(tensor) == version for tensor, version in self._tensors
        )

    def again(self, index: Any = ()) -> Any:
        """Return it in containers of its own, as the batch of these samples."""
        return self._in_containers(
            self._batch, {id(tensor): tensor.new_tensor(index) for tensor in self._numbers}
        )

    def _in_containers(self, batch: Any, instead: dict[int, Any]) -> Any:
        return copy.deepcopy(
            batch, {**{id(tensor): tensor for tensor, _ in self._tensors}, **instead}
        )


def _is_index(tensor: Tensor, index: Any) -> bool:
    """Whether these are the numbers of the samples of a batch."""
    if not isinstance(index, (list, tuple)) or not index:  # a script's own sampler may give others
        return False
    alike = tensor.dim() == 1 and tensor.numel() == len(index) and not tensor.is_floating_point()
    return alike and not tensor.is_sparse and not tensor.is_cuda and tensor.tolist() == list(index)


def _written(tensor: Tensor) -> tuple[int, bool, bool]:
    """Return what shows whether a script has changed a tensor of a batch."""
    return (
        tensor._version,
        tensor.requires_grad,
        tensor.is_leaf and tensor.grad is None,
    )  # torch warns of others


def is_worker() -> bool:
    """Whether this process draws for another one."""
    return sys.modules["torch.utils.data._utils.worker"].get_worker_info() is not None


def unwatched(fetch: Function) -> Function:
    """Return what draws without a look at the values of tensors (`values/rules`), which takes
    longer than to make them.

    It is for samples on the host alone.
    """
    native = sys.modules["torch"]._C
    keys = native.DispatchKeySet(native.DispatchKey.ADInplaceOrView)
    # torch/_C/__init__.pyi, 2.4 to 2.15
    without = getattr(native, "_ExcludeDispatchKeyGuard", contextlib.nullcontext)

    def drawn(fetcher: Any, index: Any) -> Any:
        with without(keys):
            return fetch(fetcher, index)

    return drawn


def attributes(dataset: Any) -> list[tuple[str, Any]]:
    """Return the plain attributes of a data set and of what it is made of: numbers, words, few of
    them, shared ones.
    """
    values = []
    for holder in (dataset, *list(vars(dataset).values())) if hasattr(dataset, "__dict__") else ():
        of = vars(holder) if hasattr(holder, "__dict__") and not isinstance(holder, type) else {}
        for name, value in list(of.items()):
            try:
                values.append((name, _plain(value)))
            except Exception:  # of a class of the script's, which may not like to be asked
                values.append((name, None))
    return values


def _plain(value: Any) -> Any:
    """Return what tells whether an attribute was changed; None of what is too much for it."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, (list, tuple)) and len(value) <= MOST_PLAIN:
        return [element for element in value if isinstance(element, _SIMPLE)]
    if isinstance(value, dict) and len(value) <= MOST_PLAIN:
        return [(name, element) for name, element in value.items() if isinstance(element, _SIMPLE)]
    if hasattr(value, "get_lock") and hasattr(value, "value"):  # multiprocessing.Value
        return value.value
    if (
        hasattr(value, "tolist")
        and not getattr(value, "is_cuda", False)
        and _elements(value) <= MOST_PLAIN
    ):
        return value.tolist()
    return None


def _elements(array: Any) -> int:
    return array.numel() if hasattr(array, "numel") else getattr(array, "size", MOST_PLAIN + 1)
