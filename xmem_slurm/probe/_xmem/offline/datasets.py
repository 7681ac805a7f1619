"""Stand-ins for well-known public data sets: each file in its published form and size, with random
labels in range.

A dry run has no network, and of a training job's data only the shapes matter there. Pixels are a
pattern of noise that repeats itself, so that an archive of 180 MB costs a few MB of host memory
while it is on its way. Each content is the same in every process. The sources stand beside the
forms.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import math
import struct
import tarfile
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    NoteFile = Callable[[int, bytes], None]
    """Is told of a file: its size, and its first bytes."""

PATTERN_BYTES = 15 * 1024
"""Of noise, repeated as pixels: shorter than deflate's window of 32 KiB, and no multiple of a
picture's size."""
FIRST_BYTES = 1 << 16
"""Of a file by which, with its size, it is told from a real one."""

_BLOCK = 1 << 20
"""Bytes that are made at once of a file that may be larger than memory."""
_PATTERN = hashlib.shake_128(b"pixels").digest(PATTERN_BYTES)


def find(address: str) -> tuple[str, Callable[[NoteFile], bytes]] | None:
    """Return (name of the data set, what makes the file) for a URL whose file is known, else None.

    The latter returns the content, bytes; it is called with `note(size, first bytes)`, which it
    tells of all files that are packed in it.
    """
    path, _, name = address.partition("?")[0].rpartition("/")
    if name not in _FILES:
        return None
    title, make = _FILES[name]
    if title == "MNIST":
        title = next((like for like in _LIKE_MNIST if like.lower() in path.lower()), title)
    return title, make


class Body:
    """A file to read: `before`, then `pixels` bytes of the pattern from its `start`-th on, then
    `after`.
    """

    def __init__(
        self, before: bytes = b"", pixels: int = 0, after: bytes = b"", start: int = 0
    ) -> None:
        self._before, self._pixels, self._after, self._start = before, pixels, after, start
        self.size = len(before) + pixels + len(after)
        self._at = 0

    def read(self, count: int = -1, /) -> bytes:
        """Return the next `count` bytes, fewer at the end."""
        begin, self._at = self._at, min(self.size, self._at + count)
        return self.part(begin, self._at)

    def part(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to before `end`."""
        first, last = (min(max(0, at - len(self._before)), self._pixels) for at in (begin, end))
        offset = (self._start + first) % PATTERN_BYTES
        pattern = _PATTERN * ((last - first + offset) // PATTERN_BYTES + 1)
        beyond = len(self._before) + self._pixels
        after = self._after[max(0, begin - beyond) : max(0, end - beyond)]
        return self._before[begin:end] + pattern[offset : offset + last - first] + after

    def blocks(self) -> Iterator[bytes]:
        """Yield all of it."""
        return iter(lambda: self.read(_BLOCK), b"")


def labels(count: int, classes: int, lowest: int = 0) -> bytes:
    """Return `count` bytes, each a label."""
    chosen = bytes(lowest + value % classes for value in range(256))
    return hashlib.shake_128(b"labels").digest(count).translate(chosen)


# -- forms -----------------------------------------------------------------------------------------


def _idx(shape: tuple[int, ...], classes: int, note: NoteFile) -> bytes:
    """MNIST's (http://yann.lecun.com/exdb/mnist, "File formats"), packed: a header, then bytes of
    labels or pixels.
    """
    size = math.prod(shape)
    header = struct.pack(">%di" % (1 + len(shape)), 0x800 + len(shape), *shape)
    body = Body(header + labels(size, classes)) if classes else Body(header, size)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
        for block in body.blocks():
            file.write(block)
    note(body.size, body.part(0, FIRST_BYTES))
    return packed.getvalue()


def _cifar(
    folder: str,
    batches: dict[str, int],
    meta: str,
    kinds: dict[str, tuple[int, str]],
    note: NoteFile,
) -> bytes:
    """CIFAR's (https://www.cs.toronto.edu/~kriz/cifar.html, "python version"): pickles of Python 2.

    A picture has 3 x 32 x 32 bytes. `batches` maps a file to its count of pictures, `meta` is the
    file of the classes' names, `kinds` maps the key of the labels to the count of classes and the
    key of their names.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for start, (name, count) in enumerate(batches.items()):
            before = b"\x80\x02}(" + _string("batch_label") + _string(name)
            for key, (classes, _) in kinds.items():
                before += (
                    _string(key)
                    + b"]("
                    + b"".join(b"K%c" % label for label in labels(count, classes))
                    + b"e"
                )
            before += _string("filenames") + _strings(
                "picture_%d.png" % number for number in range(count)
            )
            before += (
                _string("data")
                + _ARRAY
                + b"(K\x01"
                + struct.pack("<cici", b"J", count, b"J", 3072)
                + b"\x86"
            )
            before += _DTYPE + b"\x89T" + struct.pack("<I", 3072 * count)
            _add(archive, note, folder + "/" + name, Body(before, 3072 * count, b"tbu.", start))
        names = (
            _string(key) + _strings("class%d" % n for n in range(classes))
            for classes, key in kinds.values()
        )
        _add(archive, note, folder + "/" + meta, Body(b"\x80\x02}(" + b"".join(names) + b"u."))
    return packed.getvalue()


_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
_DTYPE = (
    b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
"""How numpy's arrays and types stand in such a pickle (numpy/core/src/multiarray: array_reduce,
arraydescr_reduce)."""


def _string(text: str) -> bytes:
    return b"U" + struct.pack("B", len(text)) + text.encode()


def _strings(texts: Iterable[str]) -> bytes:
    return b"](" + b"".join(map(_string, texts)) + b"e"


def _svhn(count: int, _note: NoteFile) -> bytes:
    """SVHN's, "cropped digits" (http://ufldl.stanford.edu/housenumbers): X of 32 x 32 x 3 x count,
    y has 10 for zero.

    In MATLAB's form of level 5 ("MAT-File Format", MathWorks): elements of a type, a size and data,
    packed.
    """
    content = struct.pack("<124sH2s", b"MATLAB 5.0 MAT-file".ljust(116) + bytes(8), 0x0100, b"IM")
    pictures = (b"X", (32, 32, 3, count), Body(pixels=3072 * count))
    for variable, shape, body in (pictures, (b"y", (count, 1), Body(labels(count, 10, 1)))):
        dimensions = struct.pack("<%di" % len(shape), *shape)
        head = struct.pack("<IIII", 6, 8, 9, 0)  # flags: an array of 8-bit unsigned integers
        head += struct.pack("<II", 5, len(dimensions)) + dimensions + bytes(-len(dimensions) % 8)
        head += struct.pack("<HH4s", 1, 1, variable) + struct.pack("<II", 2, body.size)
        fill = bytes(-body.size % 8)
        pack = zlib.compressobj(1)
        parts = [pack.compress(struct.pack("<II", 14, len(head) + body.size + len(fill)) + head)]
        parts += [pack.compress(block) for block in body.blocks()]
        parts += [pack.compress(fill), pack.flush()]
        packed = b"".join(parts)
        content += struct.pack("<II", 15, len(packed)) + packed
    return content


def _stl(note: NoteFile) -> bytes:
    """STL-10's (https://cs.stanford.edu/~acoates/stl10): 3 x 96 x 96 bytes a picture, a byte a
    label, or none.

    Of the 100,000 that have none only the first are there, the rest is a hole in the file: they
    fill 2.8 GB of the job's memory where it reads them, and no disk.
    """
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT
    ) as archive:
        for part, count in (("train", 5000), ("test", 8000)):
            _add(archive, note, "stl10_binary/%s_y.bin" % part, Body(labels(count, 10, 1)))
            _add(archive, note, "stl10_binary/%s_X.bin" % part, Body(pixels=27648 * count))
        folds = (" ".join(str(500 * (fold % 5) + n) for n in range(1000)) for fold in range(10))
        _add(archive, note, "stl10_binary/fold_indices.txt", Body("\n".join(folds).encode()))
        _add(
            archive,
            note,
            "stl10_binary/class_names.txt",
            Body("\n".join(map("class{}".format, range(10))).encode()),
        )
        _add(archive, note, "stl10_binary/unlabeled_X.bin", Body(pixels=_BLOCK), 27648 * 100_000)
    return packed.getvalue()


def _add(
    archive: tarfile.TarFile, note: NoteFile, path: str, body: Body, size: int | None = None
) -> None:
    """Put a file into an archive, with a hole up to `size` (GNU tar's manual, "PAX Format, Version
    0.1").
    """
    entry = tarfile.TarInfo(path)
    entry.size = body.size
    if size is not None:
        blocks = {"map": "0,%d,%d,0" % (body.size, size), "size": str(size), "numblocks": "2"}
        entry.pax_headers = {"GNU.sparse." + key: value for key, value in blocks.items()}
    archive.addfile(entry, body)
    note(size or body.size, body.part(0, FIRST_BYTES))


_LIKE_MNIST = ("Fashion-MNIST", "KMNIST")
"""Published in MNIST's form, with its sizes and names of files (https://github.com/zalandoresearch/fashion-mnist,
https://github.com/rois-codh/kmnist)."""

_CIFAR_10 = {**{"data_batch_%d" % number: 10_000 for number in range(1, 6)}, "test_batch": 10_000}
_CIFAR_100 = {"train": 50_000, "test": 10_000}
_NAMES_10, _NAMES_100 = (10, "label_names"), (100, "fine_label_names")
_KINDS_100 = {"fine_labels": _NAMES_100, "coarse_labels": (20, "coarse_label_names")}

_FILES: dict[str, tuple[str, Callable[[NoteFile], bytes]]] = {
    "train-images-idx3-ubyte.gz": ("MNIST", functools.partial(_idx, (60_000, 28, 28), 0)),
    "train-labels-idx1-ubyte.gz": ("MNIST", functools.partial(_idx, (60_000,), 10)),
    "t10k-images-idx3-ubyte.gz": ("MNIST", functools.partial(_idx, (10_000, 28, 28), 0)),
    "t10k-labels-idx1-ubyte.gz": ("MNIST", functools.partial(_idx, (10_000,), 10)),
    "cifar-10-python.tar.gz": (
        "CIFAR-10",
        functools.partial(
            _cifar, "cifar-10-batches-py", _CIFAR_10, "batches.meta", {"labels": _NAMES_10}
        ),
    ),
    "cifar-100-python.tar.gz": (
        "CIFAR-100",
        functools.partial(_cifar, "cifar-100-python", _CIFAR_100, "meta", _KINDS_100),
    ),
    "train_32x32.mat": ("SVHN", functools.partial(_svhn, 73_257)),
    "test_32x32.mat": ("SVHN", functools.partial(_svhn, 26_032)),
    "stl10_binary.tar.gz": ("STL-10", _stl),
}
"""By the name of a file: the data set that it is of, and what makes it."""
