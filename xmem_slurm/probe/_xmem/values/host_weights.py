"""Weights of a model on the host: large ones are not drawn, converted, copied or read, as that tells nothing.

On the GPU their values are not known anyway, but zeros. So they are zeros on the host, too, and take neither the time
nor the memory of billions of numbers: what is not written to takes none, and what is mapped from a file stays there.
"""

import ctypes
import functools
import mmap
import os
import zipfile

LARGE = 1 << 20
"""Elements: such a one takes a CPU hundredths of a second to draw, and 2 or 4 MiB once it is written to."""
LARGE_FILE = 1 << 26
"""Bytes."""
LARGE_RECORD, MOST_WRITTEN = 1 << 20, 1 << 30
"""Bytes of one storage, and of all such that are written as they are: what a dry run writes stays in memory."""


class HostWeights:
    """What takes the place of torch's own where it makes weights on the host (`patches`)."""

    def __init__(self, torch, look):
        """`look` is called where much may lie on the host: before some of it goes elsewhere."""
        self._torch, self._look = torch, look
        self._kinds = (torch.Tensor, torch.nn.Parameter)
        self._dtypes = (torch.float32, torch.float16, torch.bfloat16)
        self._written = 0  # bytes, into checkpoints

    def drawn(self, draw, _owner):
        """Around what draws a model's first values."""

        @functools.wraps(draw)
        def drawn(tensor, *args, **kwargs):
            is_weight = tensor.device.type == "cpu" and tensor.dim() > 1 and tensor.is_contiguous()
            if not is_weight or tensor.numel() < LARGE:
                return draw(tensor, *args, **kwargs)
            return _zeroed(tensor)

        return drawn

    def converted(self, convert, _owner):
        """Around Tensor.to: from one of the types that weights have to another, it stays on the host or goes on."""

        @functools.wraps(convert)
        def to(tensor, *args, **kwargs):
            self._leaving(tensor)
            if tensor.numel() >= LARGE and self._is_weight(tensor):
                try:
                    _, dtype, _, layout = self._torch._C._nn._parse_to(*args, **kwargs)
                except (TypeError, RuntimeError):  # Tensor.to takes more than Module.to
                    return convert(tensor, *args, **kwargs)
                if dtype not in (None, tensor.dtype) and dtype in self._dtypes and layout is None:
                    zeros = self._torch.empty_like(tensor, dtype=dtype)
                    if type(zeros) is self._torch.Tensor:  # not where nothing is computed (FakeTensorMode)
                        return convert(_zeroed(zeros), *args, **kwargs)
            return convert(tensor, *args, **kwargs)

        return to

    def cast(self, cast, _owner):
        """Around Tensor.half and its like."""
        dtype = {"half": self._torch.float16, "bfloat16": self._torch.bfloat16, "float": self._torch.float32}

        @functools.wraps(cast)
        def to_dtype(tensor, *args, **kwargs):
            if tensor.numel() >= LARGE and self._is_weight(tensor):
                return tensor.to(dtype[cast.__name__], *args, **kwargs)
            return cast(tensor, *args, **kwargs)

        return to_dtype

    def moved(self, cuda, _owner):
        """Around Tensor.cuda."""

        @functools.wraps(cuda)
        def to_gpu(tensor, *args, **kwargs):
            self._leaving(tensor)
            return cuda(tensor, *args, **kwargs)

        return to_gpu

    def _leaving(self, tensor):
        if isinstance(tensor, self._torch.Tensor) and tensor.numel() >= LARGE and tensor.device.type == "cpu":
            self._look()

    def copied(self, copy, _owner):
        """Around Tensor.copy_: a parameter on the host keeps what it has, whatever weights it is to have."""

        @functools.wraps(copy)
        def copy_(tensor, source, *args, **kwargs):
            self._leaving(source)
            large = tensor.numel() >= LARGE and type(tensor) is self._torch.nn.Parameter
            if large and self._is_weight(tensor) and self._is_weight(source) and source.shape == tensor.shape:
                return tensor
            return copy(tensor, source, *args, **kwargs)

        return copy_

    def read(self, load, _owner):
        """Around torch.load: a large file is mapped, where it can be."""

        @functools.wraps(load)
        def read(f, *args, **kwargs):
            if kwargs.get("mmap") is None and isinstance(f, (str, os.PathLike)) and _is_large_archive(f):
                kwargs["mmap"] = True
            return load(f, *args, **kwargs)

        return read

    def written(self, write, _writer_class):
        """Around what writes a record of a checkpoint: after the first GiB of all, large ones are holes in the file.

        As in torch.serialization.skip_data; they are read as zeros.
        """

        @functools.wraps(write)
        def written(writer, name, data, size, *args, **kwargs):
            if size < LARGE_RECORD or not hasattr(writer, "write_record_metadata"):
                return write(writer, name, data, size, *args, **kwargs)
            self._written += size
            if self._written > MOST_WRITTEN:
                return writer.write_record_metadata(name, size)
            return write(writer, name, data, size, *args, **kwargs)

        return written

    def _is_weight(self, tensor):
        """Whether it looks like a model's weight on the host, of which no gradient is made on the way."""
        return (
            type(tensor) in self._kinds
            and tensor.device.type == "cpu"
            and tensor.dtype in self._dtypes
            and tensor.dim() > 1
            and tensor.layout is self._torch.strided
            and not (tensor.requires_grad and self._torch.is_grad_enabled())
        )


def _is_large_archive(path):
    """Whether this is a file that torch.save wrote in its present form: what it can map."""
    try:
        return os.path.getsize(path) >= LARGE_FILE and zipfile.is_zipfile(path)
    except OSError:
        return False  # torch will say so


def _zeroed(tensor):
    """Have its memory read as zeros, and take none until it is written to; only its edges are at once."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, (begin + size) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.memset(begin, 0, first - begin)
    ctypes.memset(last, 0, begin + size - last)
    if ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED):
        ctypes.memset(first, 0, last - first)  # it is locked
    return tensor
