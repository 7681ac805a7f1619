"""When are two calls of one kind, so that they ask the allocator for the same? Where all is alike
that can change it.

Note [Kinds]: the kind of a call is its arguments (of tensors shape, strides, type, device and
whether they need a gradient, and which of them are the same one; of small ones on the host their
values, but for single numbers that nobody reads (Note [Numbers not read]); of all else that is
plain its value), torch's switches (gradients, autocast, attention), which of the modules within are
in training, their plain attributes (`checkpointing` may be one), what else their code reads (Note
[Surroundings]), the parameters: of which type they are, which need a gradient, and which have one,
the buffers: how large they are, and the stream. A call with anything else among its arguments has
none.
"""

from __future__ import annotations

import collections
import dis
import functools
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from types import CodeType, ModuleType

    from _xmem.annotations import Module

MOST_VALUES = 64
"""Elements of a tensor on the host that are looked at."""
UNREAD_VALUES = object()
"""In place of such values: Note [Numbers not read]."""
_INTERNAL = {
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_is_full_backward_hook",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple("_global" + name for name in _HOOKS)
"""Of torch.nn.modules.module: who is told of calls of all modules."""
_REACHING = {"LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "IMPORT_NAME", "MAKE_FUNCTION"}
"""Of Python's instructions those by which a function without closure gets hold of something that
outlives it."""
_RECOMPUTING = {"torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"}
"""Where torch has hooks that are told of a call to make an attribute of its module anew: that is a
part of the call."""
_CONTAINERS = (list, dict, set, tuple, collections.deque)
_SIMPLE = (bool, int, float, str, bytes, type(None))
_SWITCHES = (
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_cudnn_sdp_enabled",
    "_get_deterministic_algorithms",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_is_flatten_enabled",
)
"""Of torch._C, those that this torch has: they choose kernels, and so workspaces."""


class Kinds:
    """What kinds of calls there are, by torch's own words."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._plain = (
            *_SIMPLE,
            torch.dtype,
            torch.device,
            torch.layout,
            torch.memory_format,
            torch.Size,
        )
        self._switches = [getattr(torch._C, name) for name in _SWITCHES if hasattr(torch._C, name)]
        # in which order kernels of attention are tried, since torch 2.6
        self._sdp_order = getattr(torch._C, "_get_sdp_priority_order", tuple)
        cached = torch.is_autocast_cache_enabled
        # torch's own: see Note [Inference mode]
        self._cached = getattr(cached, "__wrapped__", cached)
        self._of_all = [getattr(torch.nn.modules.module, name, {}) for name in _GLOBAL_HOOKS]
        self._forward = torch.autograd.forward_ad
        self._peek = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
        self._modes = (
            torch._C._len_torch_dispatch_stack,
            getattr(torch._C, "_len_torch_function_stack", lambda: 0),
            getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _ignore: None),
        )

    def is_plain(self, leaf: object) -> bool:
        """Whether it is the same wherever it is equal."""
        return isinstance(leaf, self._plain)

    def is_number(self, leaf: Any) -> bool:
        """Whether it is a number on the host, as a tensor."""
        is_tensor = isinstance(leaf, self._torch.Tensor)
        return is_tensor and leaf.dim() == 0 and leaf.device.type == "cpu"

    def of(self, leaf: Any, *, unread: bool = False) -> tuple[Any, ...] | None:
        """Return the kind of an argument; None: it has none. `unread`: numbers on the host are not
        read.
        """
        torch = self._torch
        if isinstance(leaf, torch.Tensor):
            if (
                type(leaf) not in (torch.Tensor, torch.nn.Parameter)
                or leaf.layout is not torch.strided
                or vars(leaf)
            ):
                return None
            values: Any = None
            if leaf.device.type != "cuda":
                if leaf.device.type != "cpu" or leaf.numel() > MOST_VALUES:
                    return None
                unread = unread and self.is_number(leaf)
                values = UNREAD_VALUES if unread else tuple(leaf.flatten().tolist())
            return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad, values)
        return (type(leaf), leaf) if isinstance(leaf, self._plain) else None

    def of_all(self, leaves: Iterable[Any], *, unread: bool = False) -> tuple[Any, ...] | None:
        """Return the kinds of all arguments, None where one has none; `unread` as for `of`."""
        leaf_kinds: list[tuple[Any, ...]] = []
        tensor_ids: list[int] = []
        for leaf in leaves:
            kind = self.of(leaf, unread=unread)
            if kind is None:
                return None
            leaf_kinds.append(kind)
            if isinstance(leaf, self._torch.Tensor):
                tensor_ids.append(id(leaf))
        if len(tensor_ids) > len(set(tensor_ids)):  # an attention asks `key is value`
            leaf_kinds.append(tuple(map(tensor_ids.index, tensor_ids)))
        return tuple(leaf_kinds)

    def applies(self) -> bool:
        """Whether torch only does here what it is told by what is called: nobody traces, captures
        or looks on.
        """
        torch, (dispatch, function, hooks) = self._torch, self._modes
        return not (
            dispatch()
            or function()
            or self._peek() is not None
            or self._forward._current_level >= 0  # arguments may have tangents
            or hooks(False) is not None
            or any(self._of_all)
            or torch.jit.is_tracing()
            or torch.cuda.is_current_stream_capturing()
        )

    def switches(self) -> tuple[Any, ...]:
        """Return how torch is set just now."""
        torch = self._torch
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.is_autocast_enabled("cuda")
            and (torch.get_autocast_dtype("cuda"), self._cached()),
            *[ask() for ask in self._switches],
            tuple(self._sdp_order()),
            torch.backends.mha.get_fastpath_enabled(),
        )

    def keeps_casts(self) -> bool:
        """Whether autocast keeps what it casts just now."""
        return self._torch.is_autocast_enabled("cuda") and self._cached()

    def state(self, modules: Iterable[Module], but: Sequence[str] = ()) -> tuple[Any, Any]:
        """Return all that a call of these modules could have changed in them: values, and which
        objects they have.
        """
        attributes = [
            (id(module), name, self._look(value))
            for module in modules
            for name, value in _lasting(module)
            if name not in but
        ]
        return attributes, self._of_host()

    def settings(self, modules: Iterable[Module]) -> list[Any]:
        """Return the plain attributes of modules, and what else can be told of them by what is
        reachable from there.
        """
        attributes = []
        for module in modules:
            training = getattr(module, "training", None)  # torch.jit.freeze leaves none
            attributes.append((training, hooked(module), *map(id, module._modules.values())))
            attributes.append(("hooks", *_pure_hooks(module)))
            for name, value in _lasting(module):
                if name not in _INTERNAL and name not in _HOOKS:
                    attributes.append(
                        (name, value) if isinstance(value, _SIMPLE) else (name, self._look(value))
                    )
        return attributes

    def configurations(self, modules: Iterable[Module]) -> list[Any]:
        """Return the objects of plain attributes that modules have, such as a configuration: each
        once.
        """
        objects_by_id = {}
        for module in modules:
            for value in vars(module).values():
                is_other = isinstance(
                    value, (*self._plain, *_CONTAINERS, type, self._torch.Tensor)
                ) or callable(value)
                # a proxy has attributes that are not its own
                if type(value).__dictoffset__ and not is_other:
                    objects_by_id[id(value)] = value
        return list(objects_by_id.values())

    def _look(self, value: Any) -> Any:
        if isinstance(value, _SIMPLE):
            return value
        if isinstance(value, dict):
            return id(value), tuple(
                (id(key), self._sign(element)) for key, element in list(value.items())
            )
        if isinstance(value, _CONTAINERS):
            return id(value), len(value), tuple(map(self._sign, list(value)[:MOST_VALUES]))
        return self._sign(value)

    def _sign(self, value: Any) -> Any:
        if isinstance(value, (bool, int, float, str, bytes)):
            return value
        if isinstance(value, self._torch.Tensor):  # what is let go of may leave its id to another
            return id(value), value.shape, value.dtype
        return (id(value), len(value)) if isinstance(value, _CONTAINERS) else id(value)

    def _of_host(self) -> tuple[Any, ...]:
        """Return the states of the host's random numbers."""
        numpy, of_torch = sys.modules.get("numpy"), self._torch.random.get_rng_state()
        if numpy is None:
            return random.getstate(), of_torch.tolist()
        of_numpy = numpy.random.get_state(legacy=False)
        inner = [
            part.tobytes() if hasattr(part, "tobytes") else part
            for part in of_numpy["state"].values()
        ]
        return random.getstate(), of_torch.numpy().tobytes(), inner, of_numpy.get("gauss")


def recomputed(module: Module) -> list[str]:
    """Return the names of the attributes that torch's own hooks make anew for each call of a
    module.
    """
    hooks = (getattr(module, "_forward_pre_hooks", None) or {}).values()
    return [hook.name for hook in hooks if type(hook).__module__ in _RECOMPUTING]


def _lasting(module: Module) -> list[tuple[str, Any]]:
    """Return (name, value) of the attributes of a module that are the same from call to call."""
    anew = recomputed(module)
    return [attribute for attribute in vars(module).items() if attribute[0] not in anew]


def hooked(module: Module, but: Collection[int] = ()) -> bool:
    """Whether somebody is told of calls of this module; hooks of these numbers do not count.

    So is a hook of the script's own for what DDP sends (`register_comm_hook`): its backward pass
    calls it, and it may count.
    """
    return bool(vars(module).get("_comm_hooks")) or any(
        number not in but and not _is_pure(hook)
        for name in _HOOKS
        for number, hook in (getattr(module, name, None) or {}).items()
    )


def _pure_hooks(module: Module) -> list[int]:
    """Return ids of the code of those that are told of calls of this module and reach nothing else:
    what they do is a part of the call.
    """
    return [
        id(hook.__code__)
        for name in _HOOKS
        for hook in (getattr(module, name, None) or {}).values()
        if hasattr(hook, "__code__") and _is_pure(hook)
    ]


def _is_pure(hook: Any) -> bool:
    """Whether a hook reaches nothing but its arguments, as one that has inputs need gradients.

    What it does to those is noticed as if the module did it.
    """
    if type(hook).__module__ in _RECOMPUTING:
        return True
    code = getattr(hook, "__code__", None)
    return (
        code is not None
        and not (hook.__closure__ or hook.__defaults__ or hook.__kwdefaults__)
        and _stays(code)
    )


@functools.lru_cache(maxsize=256)
def _stays(code: CodeType) -> bool:
    return not any(instruction.opname in _REACHING for instruction in dis.get_instructions(code))
