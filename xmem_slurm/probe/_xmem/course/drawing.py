"""Where data take the time, and all batches were of one shape, most of the rest are given again and not drawn.

Note [Drawn again]: a script's own data pipeline runs as it is, and for pictures that are decoded that is most of what a
dry run costs. Once enough of a data set was of one shape, and drawing it took `SECONDS`, only each `EACH`th batch is
drawn, later so many that a change is found before `SHARE` more have been given, and each is given again until the next
one is. Enough is `SAME` batches that the script puts
together itself. torch's own collate_fn takes samples of one size alone and fails where two differ: there enough is
`SAMPLES` of them, in `FEW` batches at least. Samplers and counts of batches are as they are. The first one of
each loop is drawn, and so are all of another number of samples. With the first batch of another shape all are drawn
from there on. Never is one given again of a data set that keeps count of something itself, or that was changed since
by the script.
"""

import contextlib
import copy
import mmap
import struct
import sys
import time
import weakref

from _xmem.course import batches

SAME = 2_000
SAMPLES, FEW = 2_048, 16
SECONDS = 5.0
"""CPU time of drawing them, in all processes."""
EACH, SHARE = 16, 64
"""A batch is drawn after so many that were given again, and after a 64th of all that ever were if that is more."""
_SHARED = struct.Struct("=?dq")
"""What processes share: whether batches are given again, how long it took to draw them, how many were given again."""
_SIMPLE = (bool, int, float, str, type(None))


class Drawing:
    """The batches of the data set of a loader, in any number of loops.

    Raises:
        TypeError: nothing can be noted of it: it is a list.
    """

    def __init__(self, loader):
        own, samples = not batches.is_of_torch(loader.collate_fn), loader.batch_size or 1
        self._dataset = weakref.ref(loader.dataset)
        self._needed = SAME if own or samples == 1 else max(FEW, SAMPLES // samples)
        self._shared = mmap.mmap(-1, _SHARED.size)  # of all workers, as they are forked
        self._shapes, self._batch, self._attributes = set(), None, None
        self._since = 0  # batches that this process has given again since it drew one
        self.given = 0
        """Batches that the script got."""
        self.on_host = False
        """Whether the last of them had nothing on the GPU."""

    def is_of(self, dataset):
        """Whether it is the one of this data set."""
        return self._dataset() is dataset

    @property
    def gives_again(self):
        """Whether batches are given again."""
        return _SHARED.unpack(self._shared)[0]

    @property
    def repeated(self):
        """How many batches were given again."""
        return _SHARED.unpack(self._shared)[2]

    def note(self, batch, steady):
        """The script gets a batch; `steady`: what it does with them repeats itself."""
        self._shapes.add(batches.shapes_of_samples(batch))
        self.given += 1
        self.on_host = not any(getattr(each, "is_cuda", False) for each in batches.tensors(batch))
        again, seconds, repeated = _SHARED.unpack(self._shared)
        enough = again or (steady and self.given > self._needed and seconds > SECONDS)
        _SHARED.pack_into(self._shared, 0, enough and len(self._shapes) == 1, seconds, repeated)

    def give_again(self):
        """From here on batches are given again, however soon that is, if they were of one shape so far."""
        _, seconds, repeated = _SHARED.unpack(self._shared)
        _SHARED.pack_into(self._shared, 0, len(self._shapes) == 1, seconds, repeated)

    def fetch(self, fetch, fetcher, index):
        """Draw a batch, or return the one before; this may be in a worker."""
        count = fetcher.__dict__["_xmem_fetched"] = fetcher.__dict__.get("_xmem_fetched", 0) + 1
        (again, _, repeated), before = _SHARED.unpack(self._shared), None
        if again:
            before = attributes(self._dataset())
            due = count == 1 or self._since >= max(EACH, repeated // SHARE)
            if not due and self._batch is not None and before == self._attributes:
                found = self._batch.again(len(index))
                if found is not None:
                    self._since += 1
                    self._spent(repeated=1)
                    return found
        self._since, began = 0, time.thread_time()
        batch = fetch(fetcher, index)
        self._spent(time.thread_time() - began)
        if again:
            counts = attributes(self._dataset()) != before
            self._attributes, self._batch = before, None if counts else Batch(batch, len(index))
        return batch

    def _spent(self, seconds=0.0, repeated=0):
        again, before, so_far = _SHARED.unpack(self._shared)
        _SHARED.pack_into(self._shared, 0, again, before + seconds, so_far + repeated)


class Batch:
    """One that is given again: its tensors themselves, as long as nobody writes to them."""

    def __init__(self, batch, samples):
        self._samples = samples
        self._tensors = [(each, each._version) for each in batches.tensors(batch) if hasattr(each, "_version")]
        self._batch = self._in_containers(batch)  # the script may take its own apart

    def again(self, samples):
        """Return it in containers of its own, as one of so many samples; None where it is none or that cannot be."""
        if samples != self._samples or any(each._version != version for each, version in self._tensors):
            return None
        return self._in_containers(self._batch)

    def _in_containers(self, batch):
        try:
            return copy.deepcopy(batch, {id(each): each for each, _ in self._tensors})
        except Exception:  # a class of the script's
            return None


def is_worker():
    """Whether this process draws for another one."""
    return sys.modules["torch.utils.data"].get_worker_info() is not None


def unwatched(fetch):
    """Return what draws without a look at the values of tensors (`values/rules`), which takes longer than to make them.

    It is for samples on the host alone.
    """
    native = sys.modules["torch"]._C
    keys = native.DispatchKeySet(native.DispatchKey.ADInplaceOrView)
    without = getattr(native, "_ExcludeDispatchKeyGuard", contextlib.nullcontext)  # torch/_C/__init__.pyi, 2.4 to 2.15

    def drawn(fetcher, index):
        with without(keys):
            return fetch(fetcher, index)

    return drawn


def attributes(dataset):
    """Return the plain attributes of a data set and of what it is made of."""
    found = []
    for each in (dataset, *list(vars(dataset).values())) if hasattr(dataset, "__dict__") else ():
        of = vars(each) if hasattr(each, "__dict__") and not isinstance(each, type) else {}
        found += [(name, value) for name, value in list(of.items()) if isinstance(value, _SIMPLE)]
    return found
