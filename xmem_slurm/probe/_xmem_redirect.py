"""Lets an unmodified script that says "cuda" run on the CPU: what it moves to the GPU is copied to new host memory.

A tensor that would lie on a GPU is marked as such, and what torch computes from it is marked, too; `device` and
`is_cuda` answer as a GPU's tensor would. Copies to the GPU and tensors created there happen inside scopes that the
profiler sees (`TO_DEVICE`, `ON_DEVICE`, `TO_HOST`), from which `xmem_slurm/profile/analyzer.py` tells GPU blocks from
host blocks. `torch.cuda` describes the GPU that the site would give.
"""

import contextlib
import importlib
import types

TO_DEVICE = "xmem::to_device"
ON_DEVICE = "xmem::on_device"
TO_HOST = "xmem::to_host"
ATTENTION_DROPOUT = "xmem::attention_dropout"

_MARK = "_xmem_on_gpu"

# Operators that CUDA's autocast runs in float32 and the CPU's does not: names in torch and torch.nn.functional.
# Source: AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE, aten/src/ATen/autocast_mode.h, torch 2.4 to 2.15.
_AUTOCAST_FLOAT32 = [
    "cosh",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "pow",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "cosine_similarity",
    "cosine_embedding_loss",
    "nll_loss",
    "cross_entropy",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "cdist",
    "logsumexp",
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "sum",
    "norm",
]


def redirect(torch, environ, on_first_use):
    """Point `torch` at the CPU wherever a script says "cuda"; call `on_first_use()` when it first does.

    `environ` holds the XMEM_DEVICE_* variables that say which GPU the site would give.
    """
    mode = _mode_class(torch)(torch, on_first_use)
    _present_gpu(torch, environ)
    _replace_generator(torch)
    _replace_autocast(torch)
    _replace_load(torch)
    _keep_marks_of_parameters(torch)
    _follow_device_contexts(torch, mode)
    _as_on_gpu(torch)
    mode.__enter__()
    return mode


def is_gpu(torch, device):
    """Whether `device`, in any way that torch lets scripts write it, is a GPU."""
    if isinstance(device, str):
        return device.startswith("cuda")
    if isinstance(device, bool):
        return False
    return isinstance(device, int) or (isinstance(device, torch.device) and device.type == "cuda")


def is_marked(tensor):
    return getattr(tensor, "__dict__", {}).get(_MARK, False)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _mode_class(torch):  # noqa: C901 - a class whose base is torch's, once torch is there
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    scope = torch.autograd.profiler.record_function

    class Redirect(TorchFunctionMode):
        """Sees every call of torch's Python interface in this thread."""

        def __init__(self, torch, on_first_use):
            super().__init__()
            self._torch = torch
            self._on_first_use = on_first_use
            self._special = {
                tensor.to: self._to,
                tensor.cuda: self._cuda,
                tensor.cpu: self._cpu,
                tensor.record_stream: lambda _func, _args, _kwargs: None,
                tensor.get_device: lambda func, args, kwargs: 0 if is_marked(args[0]) else func(*args, **kwargs),
                tensor.device.__get__: self._device_of,
                tensor.is_cuda.__get__: lambda func, args, kwargs: is_marked(args[0]) or func(*args, **kwargs),
                tensor.data.__set__: self._set_data,
            }
            homes = (torch, torch.nn.functional, tensor)
            found = [getattr(home, name, None) for home in homes for name in _AUTOCAST_FLOAT32]
            self._float32 = {function for function in found if function is not None}

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            special = self._special.get(func)
            if special is not None:
                return special(func, args, kwargs)
            if "device" in kwargs and is_gpu(self._torch, kwargs["device"]):
                return self.create(func, args, kwargs)
            if func in self._float32 and self._torch.is_autocast_enabled("cpu"):
                return self._in_float32(func, args, kwargs)
            return self._marked_like(func(*args, **kwargs), args, kwargs)

        def create(self, func, args, kwargs):
            """Call a function that creates tensors on the GPU."""
            self.used()
            with scope(ON_DEVICE):
                return _mark(self._torch, func(*args, **{**kwargs, "device": "cpu"}))

        def used(self):
            """Note that the script is about to use the GPU."""
            if self._on_first_use is not None:
                begin, self._on_first_use = self._on_first_use, None
                begin()

        def _marked_like(self, result, args, kwargs):
            if _any_marked(args) or (kwargs and _any_marked(kwargs.values())):
                return _mark(self._torch, result)
            return result

        def _in_float32(self, func, args, kwargs):
            half = (self._torch.float16, self._torch.bfloat16)

            def widened(value):
                if isinstance(value, tensor) and value.dtype in half:
                    return self._marked_like(value.float(), (value,), {})
                return value

            with self._torch.autocast("cpu", enabled=False):
                wide = {name: widened(value) for name, value in kwargs.items()}
                return self._marked_like(func(*[widened(value) for value in args], **wide), args, kwargs)

        def _to(self, func, args, kwargs):
            value, rest, kwargs = args[0], list(args[1:]), dict(kwargs)
            target = kwargs.pop("device", None)
            other = kwargs.pop("other", None)
            if rest and isinstance(rest[0], tensor):
                other = rest.pop(0)
            elif rest and not isinstance(rest[0], self._torch.dtype):
                target = rest.pop(0)
            if other is not None:
                kwargs["dtype"] = other.dtype
                target = "cuda" if is_marked(other) else "cpu"
            if target is None:
                return self._marked_like(func(*args, **kwargs), args, {})
            here, there = is_marked(value), is_gpu(self._torch, target)
            if not there and str(target).partition(":")[0] != "cpu":
                return func(value, target, *rest, **kwargs)  # "meta" and the like
            if here == there:
                moved = func(value, "cpu", *rest, **kwargs)
                return _mark(self._torch, moved) if there else moved
            if there:
                self.used()
            rest = rest[:2]  # dtype and non_blocking; the copy is made in any case
            kwargs["copy"] = True
            with scope(TO_DEVICE if there else TO_HOST):
                moved = func(value, "cpu", *rest, **kwargs)
            return _mark(self._torch, moved) if there else moved

        def _cuda(self, _func, args, kwargs):
            memory_format = kwargs.get("memory_format")
            return self._to(tensor.to, (args[0], "cuda"), {"memory_format": memory_format} if memory_format else {})

        def _cpu(self, _func, args, _kwargs):
            return self._to(tensor.to, (args[0], "cpu"), {})

        def _device_of(self, func, args, kwargs):
            return self._torch.device("cuda", 0) if is_marked(args[0]) else func(*args, **kwargs)

        def _set_data(self, func, args, kwargs):
            func(*args, **kwargs)
            if is_marked(args[1]):
                setattr(args[0], _MARK, True)
            else:
                args[0].__dict__.pop(_MARK, None)

    return Redirect


def _any_marked(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            if _any_marked(value):
                return True
        elif is_marked(value):
            return True
    return False


def _mark(torch, value):
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(AttributeError):
            setattr(value, _MARK, True)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _mark(torch, each)
    return value


# -- torch.cuda --------------------------------------------------------------------------------------------------------


class _Idle:
    """A stream, an event or a context of the GPU: accepts everything, does nothing, is always done."""

    device_index = 0
    cuda_stream = 0

    def __init__(self, *_args, **_kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None

    def query(self):
        return True

    def elapsed_time(self, _other):
        return 1.0

    def record(self, *_args):
        return None

    def record_event(self, *_args):
        return _Idle()

    def synchronize(self):
        return None

    def is_capturing(self):
        return False

    wait = wait_event = wait_stream = record


def _present_gpu(torch, environ):
    """Let torch.cuda describe the site's GPU, and do nothing where it would talk to one."""
    name, count = environ["XMEM_DEVICE_NAME"], int(environ.get("XMEM_DEVICE_COUNT", "1"))
    major, _, minor = environ["XMEM_DEVICE_CAPABILITY"].partition(".")
    total = int(environ["XMEM_DEVICE_TOTAL_BYTES"])
    capability = (int(major), int(minor))
    properties = types.SimpleNamespace(
        name=name,
        major=capability[0],
        minor=capability[1],
        total_memory=total,
        multi_processor_count=int(environ["XMEM_DEVICE_MULTIPROCESSORS"]),
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
    )

    def always(value):  # a function of its own for each name: torch._dynamo looks them up by identity
        return lambda *_args, **_kwargs: value

    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: count,
        "current_device": always(0),
        "get_device_name": lambda *_args: name,
        "get_device_capability": lambda *_args: capability,
        "get_device_properties": lambda *_args: properties,
        "get_arch_list": lambda: ["sm_%d%d" % capability],
        "mem_get_info": lambda *_args: (total, total),
        "is_bf16_supported": lambda *_args, **_kwargs: capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda *_args: True,
        "get_rng_state": lambda *_args: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "memory_stats": lambda *_args: {},
        "memory_summary": lambda *_args, **_kwargs: "",
    }
    idle = "current_stream default_stream stream Stream Event device device_of"
    quiet = (
        "init _lazy_init set_device synchronize empty_cache ipc_collect manual_seed manual_seed_all seed seed_all "
        "reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction set_rng_state "
        "set_rng_state_all set_stream"
    )
    none_used = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization"
    answers.update({each: type(each, (_Idle,), {}) for each in idle.split()})
    answers.update({each: always(None) for each in quiet.split()})
    answers.update({each: always(0) for each in none_used.split()})
    for attribute, answer in answers.items():
        setattr(torch.cuda, attribute, answer)
        if hasattr(torch.cuda.memory, attribute):
            setattr(torch.cuda.memory, attribute, answer)
    if torch.version.cuda is None:
        torch.version.cuda = "12.8"  # scripts and libraries take a None for "no GPU"
    torch.Tensor.pin_memory = lambda self, device=None: self  # a data loader's thread calls it, outside of the mode
    torch.Tensor.is_pinned = lambda self, device=None: False
    if hasattr(torch, "accelerator"):
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
        torch.accelerator.device_count = lambda: count
        torch.accelerator.current_device_index = torch.accelerator.current_device_idx = lambda: 0
        torch.accelerator.current_stream = type("current_stream", (_Idle,), {})
        torch.accelerator.set_device_index = torch.accelerator.set_device_idx = lambda _device: None
        torch.accelerator.synchronize = lambda *_args: None


def _replace_generator(torch):
    real = torch.Generator

    class Kind(type(real)):
        def __instancecheck__(cls, thing):
            return isinstance(thing, real)

    class Generator(real, metaclass=Kind):
        def __new__(cls, device="cpu"):
            return real("cpu" if is_gpu(torch, device) else device)

    torch.Generator = Generator


def _replace_autocast(torch):
    """CUDA's autocast becomes the CPU's, with CUDA's default type."""
    init = torch.autocast.__init__

    def cpu_init(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    torch.autocast.__init__ = cpu_init
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        ask = getattr(torch, name)
        setattr(torch, name, lambda device_type="cpu", ask=ask: ask("cpu" if device_type == "cuda" else device_type))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


def _replace_load(torch):
    load = torch.load

    def load_to_host(file, map_location=None, **kwargs):
        """Load to the host, then copy: without `map_location` what was saved from the GPU, by its mark."""
        onto_host = "cpu" if map_location is None or is_gpu(torch, map_location) else map_location
        loaded = load(file, map_location=onto_host, **kwargs)
        return _moved(torch, loaded, is_gpu(torch, map_location), map_location is None)

    torch.load = load_to_host


def _moved(torch, value, all_of_it, marked):
    if isinstance(value, torch.Tensor):
        was_marked = value.__dict__.pop(_MARK, False)
        return value.cuda() if all_of_it or (marked and was_marked) else value
    if isinstance(value, dict):
        return type(value)((key, _moved(torch, each, all_of_it, marked)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(_moved(torch, each, all_of_it, marked) for each in value)
    return value


def _keep_marks_of_parameters(torch):
    """A parameter is a new object over the tensor that it is made from."""
    make = torch.nn.Parameter.__new__

    def make_marked(cls, data=None, requires_grad=True):
        made = make(cls, data, requires_grad)
        return _mark(torch, made) if is_marked(data) else made

    torch.nn.Parameter.__new__ = make_marked


def _follow_device_contexts(torch, mode):
    """`with torch.device("cuda")` and torch.set_default_device: torch calls them after us, so we stand in for them."""
    from torch.utils import _device

    ask = _device.DeviceContext.__torch_function__

    def create(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_gpu(torch, self.device) and func in _device._device_constructors() and kwargs.get("device") is None:
            return mode.create(func, args, kwargs)
        return ask(self, func, types, args, kwargs)

    _device.DeviceContext.__torch_function__ = create


# -- what torch does otherwise on a GPU --------------------------------------------------------------------------------


def _as_on_gpu(torch):
    """Let torch take the way that it takes on a GPU, where the CPU's way keeps other memory."""
    functional = torch.nn.functional
    _keep_byte_masks(torch, functional)
    _never_attend_by_parts(torch, functional)
    _prefer_foreach()


def _keep_byte_masks(torch, functional):
    """Dropout keeps a mask of one byte an element on a GPU, and noise of the input's own type on the CPU.

    Source: `is_fused_kernel_acceptable` in aten/src/ATen/native/Dropout.cpp.
    """
    plain = functional.dropout

    def dropout(input, p=0.5, training=True, inplace=False):  # noqa: A002 - torch's own name
        if training and not inplace and 0 < p < 1 and input.numel():
            return torch.native_dropout(input, p, True)[0]
        return plain(input, p, training, inplace)

    functional.dropout = dropout


def _never_attend_by_parts(torch, functional):
    """Attention with dropout is one kernel on a GPU; the CPU has such a kernel for attention without dropout only.

    Source: `use_flash_attention_cpp` in aten/src/ATen/native/transformers/sdp_utils_cpp.cpp.
    """
    attend = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        with torch.autograd.profiler.record_function(ATTENTION_DROPOUT) if dropout_p else contextlib.nullcontext():
            return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)

    functional.scaled_dot_product_attention = scaled_dot_product_attention


def _prefer_foreach():
    """Optimizers and gradient clipping take all tensors at once on a GPU, and one after the other on the CPU.

    Source: `_get_foreach_kernels_supported_devices` in torch/utils/_foreach_utils.py.
    """
    for name in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        module = importlib.import_module(name)
        module._get_foreach_kernels_supported_devices = lambda: ["cuda", "cpu"]
