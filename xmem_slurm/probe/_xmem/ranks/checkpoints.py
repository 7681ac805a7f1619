"""What saving and loading ask of ranks that do not run: a checkpoint in shards, and the optimizer's state under FSDP1.

Objects that are gathered are this rank's in each place (`ranks/peers`). A plan in which all ranks write the same part
of a tensor is one that torch refuses, and parameters that lie on other ranks whole have no state on this one. The names
are torch's own, 2.4 to 2.15.
"""

import contextlib
import functools

from _xmem import imports


def install():
    """Wait for the two modules."""
    changes = {
        "torch.distributed.checkpoint.default_planner": _accept_plans,
        "torch.distributed.fsdp._optim_utils": _know_of_all_states,
    }
    for name, change in changes.items():
        imports.after(name, functools.partial(_where_known, change))


def _where_known(change, module):
    with contextlib.suppress(AttributeError):  # this torch has them otherwise: as without us
        change(module)


def _accept_plans(planner):
    """Let the parts that this rank was asked for be written by it, so that it can load them; the rest is nobody's."""
    valid, without_twins = planner._validate_global_plan, planner.dedup_save_plans
    planner._validate_global_plan = lambda plans, metadata: len(plans) > 1 or valid(plans, metadata)
    planner.dedup_save_plans = lambda plans, _to_lowest_rank=True: without_twins(plans, True)


def _know_of_all_states(optim):
    """Let parameters of which this rank holds nothing have the state that those that it holds have."""
    map_keys, gather = optim._map_param_key_to_optim_keys, optim._allgather_state_info

    def map_all_keys(state_dict, group, parameters, names, *managed, merge_keys=False):
        everyone, own = map_keys(state_dict, group, parameters, names, *managed, merge_keys=merge_keys)
        if merge_keys and own:
            elsewhere = [tuple(names[each]) for each in parameters.values() if each.requires_grad and not each.numel()]
            everyone = sorted({*everyone, *(optim._OptimStateKey(each, is_fsdp_managed=True) for each in elsewhere)})
        return everyone, own

    def gather_all(fsdp_state, states):
        gathered = gather(fsdp_state, states)
        known = [info for info in gathered[fsdp_state.rank].values() if info.tensors]
        for rank, infos in enumerate(gathered):
            if rank != fsdp_state.rank and known:
                infos.update({name: known[0] for name, info in infos.items() if not info.tensors})
        return gathered

    optim._map_param_key_to_optim_keys, optim._allgather_state_info = map_all_keys, gather_all
