"""Lets an unmodified script that says "cuda" run on the CPU: what it moves to the GPU is copied to
new host memory.

A tensor that would lie on a GPU is marked as such, and what torch computes from it is marked, too;
`device` and `is_cuda` answer as a GPU's tensor would. Copies to the GPU and tensors created there
happen inside scopes that the profiler sees (`TO_DEVICE`, `ON_DEVICE`, `TO_HOST`), from which
`xmem_slurm/profile/analyzer.py` tells GPU blocks from host blocks. `torch.cuda` describes the GPU
that the site would give.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from _xmem.cpu import as_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from _xmem.annotations import Device, Dtype, Function, Tensor

TO_DEVICE = "xmem::to_device"
ON_DEVICE = "xmem::on_device"
TO_HOST = "xmem::to_host"

_MARK = "_xmem_on_gpu"


class Redirect:
    """Points torch at the CPU wherever a script says "cuda"; calls `on_first_use()` when it first
    does.
    """

    def __init__(self, torch: ModuleType, on_first_use: Callable[[], None]) -> None:
        self._torch = torch
        self._mode = _mode(torch, on_first_use)

    def begin(self, with_onednn: bool) -> None:
        """Redirect from now on, for as long as this process runs; oneDNN is never left out if it is
        `with_onednn`.
        """
        if with_onednn:
            self._mode.keep_onednn()
        self._mode.__enter__()

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    def generator(self, real: Any, _owner: object) -> type:
        """A generator of the GPU's is the CPU's."""

        class GeneratorKind(type(real)):  # type: ignore[misc] # torch's, unknown to mypy
            def __instancecheck__(cls, thing: object) -> bool:
                return isinstance(thing, real)

        class Generator(real, metaclass=GeneratorKind):
            def __new__(cls, device: Device = "cpu") -> Any:
                return real("cpu" if is_gpu(device) else device)

        return Generator

    def autocast(self, init: Function, _owner: object) -> Function:
        """CUDA's autocast becomes the CPU's, with CUDA's default type."""
        half = self._torch.float16

        def cpu_init(
            self: Any,
            device_type: str,
            dtype: Dtype | None = None,
            enabled: bool = True,
            cache_enabled: bool | None = None,
        ) -> None:
            if device_type == "cuda":
                device_type, dtype = "cpu", dtype or half
            init(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

        return cpu_init

    def asked_of_autocast(self, ask: Function, _owner: object) -> Function:
        """What is asked of CUDA's autocast, the CPU's answers."""
        return lambda device_type="cpu": ask("cpu" if device_type == "cuda" else device_type)

    def gpu_type(self, _ask: Function, _owner: object) -> Function:
        """The type of CUDA's autocast is the CPU's."""
        return lambda: self._torch.get_autocast_dtype("cpu")

    def scaler(self, make: Function, _owner: object) -> Function:
        """Let gradients be scaled by 1 at first: at 65536 many a job leaves out a dozen steps until
        none overflows.

        All of those would be run and profiled here, and they hold no more memory than the first
        that counts.
        """

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            self._init_scale = 1.0

        return init

    def load(self, load: Function, _owner: object) -> Function:
        """Around torch.load."""

        def load_to_host(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            """Load to the host, then copy: without `map_location` what was saved from the GPU, by
            its mark.
            """
            onto_host = "cpu" if map_location is None or is_gpu(map_location) else map_location
            loaded = load(f, onto_host, *args, **kwargs)
            return _moved(self._torch, loaded, is_gpu(map_location), map_location is None)

        return load_to_host

    def parameter(self, make: Function, _owner: object) -> Function:
        """A parameter is a new object over the tensor that it is made from: it keeps the mark."""

        def make_marked(
            cls: type, data: Tensor | None = None, requires_grad: bool = True
        ) -> Tensor:
            new = make(cls, data, requires_grad)
            return _mark(self._torch, new) if is_marked(data) else new

        return make_marked

    def device_context(self, ask: Function, _owner: object) -> Function:
        """`with torch.device("cuda")` and torch.set_default_device: torch calls them after us: we
        stand in for them.
        """
        mode = self._mode
        constructors = importlib.import_module("torch.utils._device")._device_constructors

        def create(
            self: Any,
            func: Function,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            kwargs = kwargs or {}
            if is_gpu(self.device) and func in constructors() and kwargs.get("device") is None:
                return mode.create(func, args, kwargs)
            return ask(self, func, types, args, kwargs)

        return create


def is_gpu(device: Any) -> bool:
    """Whether `device`, in any way that torch lets scripts write it, is a GPU."""
    if isinstance(device, str):
        return device.startswith("cuda")
    if isinstance(device, bool):
        return False
    return isinstance(device, int) or getattr(device, "type", None) == "cuda"


def is_marked(tensor: Tensor) -> bool:
    return getattr(tensor, "__dict__", {}).get(_MARK, False)


# -- tensors ---------------------------------------------------------------------------------------


def _mode(torch: ModuleType, on_first_use: Callable[[], None]) -> Any:  # noqa: C901 - a class whose base is torch's, once torch is there
    """Return the mode that redirects what torch is called for."""
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    scope = torch.autograd.profiler.record_function
    half = (torch.float16, torch.bfloat16)

    class Mode(TorchFunctionMode):
        """Sees every call of torch's Python interface in this thread."""

        def __init__(self) -> None:
            super().__init__()
            self._on_first_use: Callable[[], None] | None = on_first_use
            self._special = {
                tensor.to: self._to,
                tensor.cuda: self._cuda,
                tensor.cpu: self._cpu,
                tensor.record_stream: lambda _func, _args, _kwargs: None,
                tensor.get_device: lambda func, args, kwargs: (
                    0 if is_marked(args[0]) else func(*args, **kwargs)
                ),
                tensor.device.__get__: self._device_of,
                tensor.is_cuda.__get__: lambda func, args, kwargs: (
                    is_marked(args[0]) or func(*args, **kwargs)
                ),
                tensor.data.__set__: self._set_data,
                torch.lstm: self._lstm,
            }
            homes = (torch, torch.nn.functional, tensor)
            functions = {
                getattr(home, name, None)
                for home in homes
                for name in as_gpu.AUTOCAST_FLOAT32.split()
            }
            self._float32 = functions - {None}

        def __torch_function__(
            self,
            func: Function,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            kwargs = kwargs or {}
            special = self._special.get(func)
            if special is not None:
                return special(func, args, kwargs)
            if "device" in kwargs and is_gpu(kwargs["device"]):
                return self.create(func, args, kwargs)
            if func in self._float32 and torch.is_autocast_enabled("cpu"):
                return self._in_float32(func, args, kwargs)
            return self._marked_like(func(*args, **kwargs), args, kwargs)

        def create(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Call a function that creates tensors on the GPU."""
            self.used()
            with scope(ON_DEVICE):
                return _mark(torch, func(*args, **{**kwargs, "device": "cpu"}))

        def used(self) -> None:
            """Note that the script is about to use the GPU."""
            if self._on_first_use is not None:
                begin, self._on_first_use = self._on_first_use, None
                begin()

        def _marked_like(self, result: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
            if _any_marked(args) or (kwargs and _any_marked(kwargs.values())):
                return _mark(torch, result)
            return result

        def _in_float32(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            def widened(value: Any) -> Any:
                if isinstance(value, tensor) and value.dtype in half:
                    return self._marked_like(value.float(), (value,), {})
                return value

            with torch.autocast("cpu", enabled=False):
                wide = {name: widened(value) for name, value in kwargs.items()}
                return self._marked_like(
                    func(*[widened(value) for value in args], **wide), args, kwargs
                )

        def keep_onednn(self) -> None:
            """This torch cannot be told to do without."""
            del self._special[torch.lstm]

        def _lstm(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Leave out oneDNN for half precision: few CPUs have its LSTM in that, and torch does
            not ask.
            """
            in_half = torch.is_autocast_enabled("cpu") or args[0].dtype in half
            with_it = torch._C._get_mkldnn_enabled()
            torch._C._set_mkldnn_enabled(with_it and not in_half)
            try:
                return self._marked_like(func(*args, **kwargs), args, kwargs)
            finally:
                torch._C._set_mkldnn_enabled(with_it)

        def _to(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Copy between what lies on the GPU and what does not; what is on its side already
            stays.
            """
            value, positional, kwargs = args[0], list(args[1:]), dict(kwargs)
            target = kwargs.pop("device", None)
            example = kwargs.pop("other", None)
            if positional and isinstance(positional[0], tensor):
                example = positional.pop(0)
            elif positional and not isinstance(positional[0], torch.dtype):
                target = positional.pop(0)
            if example is not None:
                kwargs["dtype"] = example.dtype
                target = "cuda" if is_marked(example) else "cpu"
            if target is None:
                return self._marked_like(func(*args, **kwargs), args, {})
            is_on_gpu, goes_to_gpu = is_marked(value), is_gpu(target)
            if not goes_to_gpu and str(target).partition(":")[0] != "cpu":
                return func(value, target, *positional, **kwargs)  # "meta" and the like
            if is_on_gpu == goes_to_gpu:
                moved = func(value, "cpu", *positional, **kwargs)
                return _mark(torch, moved) if goes_to_gpu else moved
            if goes_to_gpu:
                self.used()
            positional = positional[:2]  # dtype and non_blocking; the copy is made in any case
            kwargs["copy"] = True
            with scope(TO_DEVICE if goes_to_gpu else TO_HOST):
                moved = func(value, "cpu", *positional, **kwargs)
            return _mark(torch, moved) if goes_to_gpu else moved

        def _cuda(self, _func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            memory_format = kwargs.get("memory_format")
            return self._to(
                tensor.to,
                (args[0], "cuda"),
                {"memory_format": memory_format} if memory_format else {},
            )

        def _cpu(self, _func: Function, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Tensor:
            return self._to(tensor.to, (args[0], "cpu"), {})

        def _device_of(
            self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Device:
            return torch.device("cuda", 0) if is_marked(args[0]) else func(*args, **kwargs)

        def _set_data(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            func(*args, **kwargs)
            if is_marked(args[1]):
                setattr(args[0], _MARK, True)
            else:
                args[0].__dict__.pop(_MARK, None)

    return Mode()


def _any_marked(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, (list, tuple)):
            if _any_marked(value):
                return True
        elif is_marked(value):
            return True
    return False


def _mark(torch: ModuleType, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(AttributeError):
            setattr(value, _MARK, True)
    elif isinstance(value, (list, tuple)):
        for element in value:
            _mark(torch, element)
    return value


def _moved(torch: ModuleType, value: Any, all_of_it: bool, marked: bool) -> Any:
    if isinstance(value, torch.Tensor):
        was_marked = value.__dict__.pop(_MARK, False)
        return value.cuda() if all_of_it or (marked and was_marked) else value
    # in place: its class may take other arguments than a dict, or add what it is given
    if isinstance(value, dict):
        for key, element in list(value.items()):
            dict.__setitem__(value, key, _moved(torch, element, all_of_it, marked))
        return value
    if type(value) in (list, tuple):
        return type(value)(_moved(torch, element, all_of_it, marked) for element in value)
    return value
