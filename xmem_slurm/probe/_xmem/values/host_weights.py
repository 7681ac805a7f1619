"""Weights of a model on the host: large ones are not drawn, converted, copied or read, as that
tells nothing.

On the GPU their values are not known anyway, but zeros. So they are zeros on the host, too, and
take neither the time nor the memory of billions of numbers: what is not written to takes none, and
what is mapped from a file stays there.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import zipfile
from typing import TYPE_CHECKING, Any

from _xmem.values import safetensors_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from _xmem.annotations import Device, Dtype, Function, HostWatcher, Storage, Tensor

LARGE = 1 << 20
"""Elements: such a one takes a CPU hundredths of a second to draw, and 2 or 4 MiB once it is
written to."""
LARGE_FILE = 1 << 26
"""Bytes."""
LARGE_RECORD, MOST_WRITTEN = 1 << 20, 1 << 30
"""Bytes of one storage, and of all such that are written as they are: what a dry run writes stays
in memory."""


class HostWeights:
    """What takes the place of torch's own where it makes weights on the host (`patches`)."""

    def __init__(self, torch: ModuleType, memory: Callable[[], HostWatcher]) -> None:
        """`memory()` is told what is left out (`record/host`), and looks at what lies on the host
        where that may be much: before some of it goes elsewhere.
        """
        self._torch, self._memory = torch, memory
        self._kinds = (torch.Tensor, torch.nn.Parameter)
        self._dtypes = (torch.float32, torch.float16, torch.bfloat16)
        self._written = 0  # bytes, into checkpoints

    def drawn(self, draw: Function, _owner: object) -> Function:
        """Around what draws a model's first values."""

        @functools.wraps(draw)
        def drawn(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            is_weight = tensor.device.type == "cpu" and tensor.dim() > 1 and tensor.is_contiguous()
            if not is_weight or not self._is_large(tensor):
                return draw(tensor, *args, **kwargs)
            return self._zeroed(tensor)

        return drawn

    def converted(self, convert: Function, _owner: object) -> Function:
        """Around Tensor.to: from one of the types that weights have to another, it stays on the
        host or goes on.
        """

        @functools.wraps(convert)
        def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            self._leaving(tensor)
            if self._is_large(tensor) and self._is_weight(tensor):
                try:
                    _, dtype, _, layout = self._torch._C._nn._parse_to(*args, **kwargs)
                except (TypeError, RuntimeError):  # Tensor.to takes more than Module.to
                    return convert(tensor, *args, **kwargs)
                if dtype not in (None, tensor.dtype) and dtype in self._dtypes and layout is None:
                    zeros = self._torch.empty_like(tensor, dtype=dtype)
                    # not where nothing is computed (FakeTensorMode)
                    if type(zeros) is self._torch.Tensor:
                        return convert(self._zeroed(zeros), *args, **kwargs)
            return convert(tensor, *args, **kwargs)

        return self._allowed(convert, to)

    def cast(self, cast: Function, _owner: object) -> Function:
        """Around Tensor.half and its like."""
        dtype = {
            "half": self._torch.float16,
            "bfloat16": self._torch.bfloat16,
            "float": self._torch.float32,
        }

        @functools.wraps(cast)
        def to_dtype(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self._is_large(tensor) and self._is_weight(tensor):
                return tensor.to(dtype[cast.__name__], *args, **kwargs)
            return cast(tensor, *args, **kwargs)

        return self._allowed(cast, to_dtype)

    def moved(self, cuda: Function, _owner: object) -> Function:
        """Around Tensor.cuda."""

        @functools.wraps(cuda)
        def to_gpu(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            self._leaving(tensor)
            return cuda(tensor, *args, **kwargs)

        return self._allowed(cuda, to_gpu)

    def _leaving(self, tensor: Tensor) -> None:
        if (
            isinstance(tensor, self._torch.Tensor)
            and self._is_large(tensor)
            and tensor.device.type == "cpu"
        ):
            self._memory().look()

    def _allowed(self, method: Function, replaced: Function) -> Function:
        """A parameter of a lazy module takes what takes the place of a method if it takes that
        method.
        """
        lazy = self._torch.nn.parameter.UninitializedTensorMixin
        if method in lazy._allowed_methods:
            lazy._allowed_methods.append(replaced)
        return replaced

    def _is_large(self, tensor: Tensor) -> bool:
        """A parameter of a lazy module has no size before the first call."""
        return not self._torch.nn.parameter.is_lazy(tensor) and tensor.numel() >= LARGE

    def copied(self, copy: Function, _owner: object) -> Function:
        """Around Tensor.copy_: a parameter on the host keeps what it has, whatever weights it is to
        have.
        """

        @functools.wraps(copy)
        def copy_(tensor: Tensor, source: Any, *args: Any, **kwargs: Any) -> Tensor:
            self._leaving(source)
            large = type(tensor) is self._torch.nn.Parameter and self._is_large(tensor)
            if (
                large
                and self._is_weight(tensor)
                and self._is_weight(source)
                and source.shape == tensor.shape
            ):
                return tensor
            return copy(tensor, source, *args, **kwargs)

        return self._allowed(copy, copy_)

    def read(self, load: Function, _owner: object) -> Function:
        """Around torch.load: a large file is mapped, where it can be."""

        @functools.wraps(load)
        def read(f: Any, *args: Any, **kwargs: Any) -> Any:
            maps = (
                kwargs.get("mmap") is None
                and isinstance(f, (str, os.PathLike))
                and _is_large_archive(f)
            )
            if not maps:
                return load(f, *args, **kwargs)
            loaded = load(f, *args, **{**kwargs, "mmap": True})
            for begin, size in _mappings(f):
                self._memory().leaves_out(begin, size, in_file=True)
            return loaded

        return read

    def written(self, write: Function, _writer_class: type) -> Function:
        """Around what writes a record of a checkpoint: after the first GiB of all, large ones are
        holes in the file.

        As in torch.serialization.skip_data; they are read as zeros.
        """

        @functools.wraps(write)
        def written(writer: Any, name: str, data: Any, size: int, *args: Any, **kwargs: Any) -> Any:
            if size < LARGE_RECORD or not hasattr(writer, "write_record_metadata"):
                return write(writer, name, data, size, *args, **kwargs)
            self._memory().look()
            self._written += size
            if self._written > MOST_WRITTEN:
                return writer.write_record_metadata(name, size)
            return write(writer, name, data, size, *args, **kwargs)

        return written

    def fetched(self, fetch: Function, _owner: object) -> Function:
        """Around what copies a storage from the GPU, as torch.save does with one after the
        other.
        """

        @functools.wraps(fetch)
        def fetched(storage: Storage) -> Storage:
            if storage.device.type != "cuda" or storage.nbytes() < LARGE_RECORD:
                return fetch(storage)
            host = self._torch.UntypedStorage(storage.nbytes(), device="cpu")
            self._read_as_zeros(host.data_ptr(), host.nbytes())
            return host

        return fetched

    def saved(self, save: Function, module: Any) -> Function:
        """Around what writes a file of safetensors: after the first GiB of all, large tensors are
        holes in it.
        """
        types = {dtype: name for name, dtype in module._TYPES.items() if dtype is not None}
        shared = module._find_shared_tensors

        @functools.wraps(save)
        def saved(
            tensors: dict[str, Tensor],
            filename: Any,
            metadata: dict[str, str] | None = None,
            **options: Any,
        ) -> None:
            size = 0
            if self._can_be_saved(tensors, metadata, types, shared):  # else it says what is wrong
                size = sum(
                    tensor.nbytes for tensor in tensors.values() if tensor.nbytes >= LARGE_RECORD
                )
            if size and self._written + size > MOST_WRITTEN:
                safetensors_file.write(filename, tensors, metadata, types, LARGE_RECORD)
            else:
                save(tensors, filename, metadata, **options)
            self._written += size

        return saved

    def opened(self, open_file: Function, _module: ModuleType) -> Function:
        """Around what opens a file of safetensors: of a large one that goes to the GPU, nothing is
        read.

        It would go through pinned memory. That reads the file whole; and a hole, on a tmpfs, takes
        room once its pages are looked at.
        """

        @functools.wraps(open_file)
        def opened(filename: Any, framework: str, device: Device = "cpu", **options: Any) -> Any:
            of_torch = framework in ("pt", "torch", "pytorch")
            if of_torch and self._torch.device(device).type == "cuda" and _is_large_file(filename):
                return safetensors_file.OnDevice(open_file(filename, framework, **options), device)
            return open_file(filename, framework, device, **options)

        return opened

    def _zeroed(self, tensor: Tensor) -> Tensor:
        """Have its memory read as zeros."""
        self._read_as_zeros(tensor.data_ptr(), tensor.nbytes)
        return tensor

    def _read_as_zeros(self, begin: int, size: int) -> None:
        """Have this memory read as zeros, and take none until it is written to; only its edges are
        at once.
        """
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (begin + size) // mmap.PAGESIZE * mmap.PAGESIZE
        ctypes.memset(begin, 0, first - begin)
        ctypes.memset(last, 0, begin + size - last)
        if ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED
        ):
            ctypes.memset(first, 0, last - first)  # it is locked
        else:
            self._memory().leaves_out(begin, size)

    def _can_be_saved(
        self,
        tensors: Any,
        metadata: dict[str, str] | None,
        types: Mapping[Dtype, str],
        shared: Function,
    ) -> bool:
        """Whether safetensors takes these: they are dense, of a type that it has, and none is a
        part of another.
        """
        if not isinstance(tensors, dict):
            return False
        words = [*tensors, *(metadata or {}), *(metadata or {}).values()]
        plain = all(
            type(tensor) in self._kinds
            and tensor.layout is self._torch.strided
            and tensor.device.type in ("cpu", "cuda")
            and tensor.dtype in types
            and tensor.is_contiguous()
            for tensor in tensors.values()
        )
        return (
            plain
            and all(type(word) is str for word in words)
            and all(len(names) == 1 for names in shared(tensors))
        )

    def _is_weight(self, tensor: Tensor) -> bool:
        """Whether it looks like a model's weight on the host, of which no gradient is made on the
        way.
        """
        return (
            type(tensor) in self._kinds
            and tensor.device.type == "cpu"
            and tensor.dtype in self._dtypes
            and tensor.dim() > 1
            and tensor.layout is self._torch.strided
            and not (tensor.requires_grad and self._torch.is_grad_enabled())
        )


def _is_large_archive(path: Any) -> bool:
    """Whether this is a file that torch.save wrote in its present form: what it can map."""
    return _is_large_file(path) and zipfile.is_zipfile(path)


def _is_large_file(path: Any) -> bool:
    try:
        return os.path.getsize(path) >= LARGE_FILE
    except OSError:
        return False  # who opens it will say so


def _mappings(path: str | os.PathLike[str]) -> list[tuple[int, int]]:
    """Return where this file is mapped: (address, bytes)."""
    name = os.fsencode(os.path.realpath(path))
    with open("/proc/self/maps", "rb") as maps:
        parts = [line.rstrip(b"\n").split(None, 5) for line in maps]
    ranges = [part[0].split(b"-") for part in parts if len(part) == 6 and part[5] == name]
    return [(int(begin, 16), int(end, 16) - int(begin, 16)) for begin, end in ranges]
