"""What saving and loading ask of ranks that do not run: a checkpoint in shards, and the optimizer's
state under FSDP1.

Objects that are gathered are this rank's in each place (`ranks/peers`). A plan in which all ranks
write the same part of a tensor is one that torch refuses, and parameters that lie on other ranks
whole have no state on this one. The names are torch's own, 2.4 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from _xmem.annotations import Function, Tensor


def always_valid(valid: Function, _planner: ModuleType) -> Function:
    """Let the parts that this rank was asked for be written by it, so that it can load them; the
    rest is nobody's.
    """
    return lambda plans, metadata: len(plans) > 1 or valid(plans, metadata)


def to_lowest_rank(without_twins: Function, _planner: ModuleType) -> Function:
    """Let what several ranks have be written by the first of them."""
    return lambda plans, _to_lowest_rank=True: without_twins(plans, True)


def with_all_keys(map_keys: Function, optim: ModuleType) -> Function:
    """Let parameters of which this rank holds nothing have the state that those that it holds
    have.
    """

    def map_all_keys(
        state_dict: dict[str, Any],
        group: dict[str, Any],
        parameters: dict[int, Tensor],
        names: Any,
        *managed: Any,
        merge_keys: bool = False,
    ) -> tuple[list[Any], dict[Any, Any]]:
        everyone, own_keys = map_keys(
            state_dict, group, parameters, names, *managed, merge_keys=merge_keys
        )
        if merge_keys and own_keys:
            elsewhere = [
                tuple(names[index])
                for index in parameters.values()
                if index.requires_grad and not index.numel()
            ]
            everyone = sorted(
                {
                    *everyone,
                    *(
                        optim._OptimStateKey(names_of_one, is_fsdp_managed=True)
                        for names_of_one in elsewhere
                    ),
                }
            )
        return everyone, own_keys

    return map_all_keys


def of_all_ranks(gather: Function, _optim: ModuleType) -> Function:
    """Let what other ranks hold of the optimizer's state be of the form that it has here."""

    def gather_all(fsdp_state: Any, states: Any) -> list[dict[str, Any]]:
        gathered = gather(fsdp_state, states)
        filled = [info for info in gathered[fsdp_state.rank].values() if info.tensors]
        for rank, infos in enumerate(gathered):
            if rank != fsdp_state.rank and filled:
                infos.update({name: filled[0] for name, info in infos.items() if not info.tensors})
        return gathered

    return gather_all
