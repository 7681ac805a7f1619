"""Modules that FSDP2 shards (torch's `fully_shard`): a call of the root is skipped with its
backward pass, as one.

Between two steps all parameters are sharded, and nothing is under way. A call of the root gathers
them, module by module, its backward pass frees them and scatters the gradients, and after that all
is as it was. So of a root that is at rest a call, and its backward pass, can stand for another one;
those of the modules within it cannot, as what one does hangs on what the ones before have left
(torch/distributed/fsdp/_fully_shard, 2.6 to 2.15).
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _xmem.annotations import Module, Tensor

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_SCATTERING = ("reduce_scatter_state", "reduce_scatter_states", "active_gradient_reduction")
_FINALIZING = ("manual_backward_finalization", "gradient_reduction_pending")
"""What says that gradients are on their way, or that the script sees to that itself: each torch has
some of these."""


def sharding(modules: Iterable[Module]) -> Sharding | None:
    """Return the `Sharding` of the first of these modules, a root of FSDP2's, and all within; None
    where it is none.
    """
    fsdp = sys.modules.get(_MODULE)
    states = [] if fsdp is None else [fsdp._get_module_fsdp_state(module) for module in modules]
    sharded_states = list({id(state): state for state in states if state is not None}.values())
    if not sharded_states or states[0] is None or not states[0]._is_root:
        return None
    return Sharding(sharded_states)


class Sharding:
    """The states that FSDP2 keeps of a root and the modules within it, none of which this keeps
    alive.
    """

    def __init__(self, states: list[Any]) -> None:
        self._references = [weakref.ref(state) for state in states]

    @property
    def _states(self) -> list[Any]:
        return [
            state for state in [reference() for reference in self._references] if state is not None
        ]

    @property
    def _groups(self) -> list[Any]:
        of_all = [
            getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            for state in self._states
        ]
        return [group for groups in of_all for group in groups if group]

    def hooks(self) -> set[int]:
        """Return the numbers of FSDP2's own hooks."""
        names = ("_pre_forward_hook_handle", "_post_forward_hook_handle")
        handles = [getattr(state, name) for state in self._states for name in names]
        return {inner.id for handle in handles for inner in getattr(handle, "handles", (handle,))}

    def rests(self) -> bool:
        """Whether nothing is under way, and a backward pass would leave it so."""
        states = self._states
        context, stream = states[0]._state_ctx, states[0]._comm_ctx  # all of a root's share them
        under_way = [context.iter_forward_root, stream.all_gather_state]
        under_way += [getattr(stream, name, None) for name in _SCATTERING]
        under_way += [getattr(context, name, None) for name in _FINALIZING]
        return (
            not any(under_way)
            and context.is_last_backward
            and all(state._training_state.name == "IDLE" for state in states)
            and all(map(_rests, self._groups))
        )

    def gathered(self) -> tuple[bool, ...]:
        """Return which groups of parameters are gathered."""
        return tuple([group.is_unsharded for group in self._groups])

    def kind(self) -> tuple[tuple[bool, ...], tuple[tuple[bool, bool], ...]]:
        """Return what of it can change what a call does."""
        groups = self._groups
        return self.gathered(), tuple(
            [(group.post_forward_mesh_info is None, group.reduce_grads) for group in groups]
        )


def _rests(group: Any) -> bool:
    """Whether nothing of a group is under way, and a backward pass leaves its gradients where they
    are: it scatters its own alone, or adds to whole ones, which all of its parameters have.

    A micro-batch of several that makes whole gradients, or scatters what those before have added
    up, does what no other one can stand for.
    """
    hooks = any(
        getattr(fsdp_param.sharded_param, "_post_accumulate_grad_hooks", None)
        for fsdp_param in group.fsdp_params
    )
    under_way = group._all_gather_result is not None or group._partial_reduce_output is not None
    whole = {
        _has_whole_gradient(fsdp_param)
        for fsdp_param in group.fsdp_params
        if fsdp_param.sharded_param.requires_grad
    }
    if group.reduce_grads:
        stays = group.all_reduce_grads and group.reshard_after_backward and True not in whole
    else:
        stays = group.reshard_after_backward and False not in whole
    return stays and not hooks and not under_way and not getattr(group, "_all_reduce_hook", None)


def _has_whole_gradient(fsdp_param: Any) -> bool:
    """Whether a parameter has a gradient that is not scattered yet."""
    unsharded = getattr(fsdp_param, "_unsharded_param", None)
    accumulated = getattr(fsdp_param, "unsharded_accumulated_grad", None)
    return accumulated is not None or getattr(unsharded, "grad", None) is not None


def local(tensor: Tensor) -> Tensor:
    """Return what of a tensor is here: of a sharded one (torch.distributed.tensor.DTensor) its
    part.
    """
    return getattr(tensor, "_local_tensor", tensor)


def as_gradient(parameter: Tensor, part: Tensor) -> Tensor:
    """Return a gradient of a parameter, of which this is what is here."""
    if local(parameter) is parameter:
        return part
    # as FSDP2 does; from_local takes 20 times as long
    return type(parameter)(part, parameter._spec, requires_grad=False)
