"""One change to the job, for a dry run that asks whether it would then fit (XMEM_ADVICE); in no other dry run.

    batch           every DataLoader gives half of its batch, if all of them give batches of one size
    bf16            autocast around each call of a model from the script, where its parameters are fp32 and none is on,
                    nor comes on within it
    checkpointing   what transformers calls gradient_checkpointing_enable, timm set_grad_checkpointing

`changed` says what was changed in fact: a script may have no DataLoader, or have autocast on already.
"""

import contextlib
import functools
import importlib
import weakref

_changed = set()
_looked_at = weakref.WeakSet()


def install(torch, change):
    """Hook the change in."""
    if change == "batch":
        _halve(importlib.import_module("torch.utils.data.sampler").BatchSampler)
    elif change == "bf16":
        _around_models(torch, functools.partial(_autocast, torch))
    elif change == "checkpointing":
        _around_models(torch, _checkpoint)


def changed():
    """Return what was changed, in words for people; empty where nothing was, or not in one way."""
    return next(iter(_changed)) if len(_changed) == 1 else ""


def _halve(sampler_class):
    """A DataLoader, also one over an IterableDataset, takes the size of its batches from a BatchSampler."""
    begin, give, whole = sampler_class.__init__, sampler_class.__iter__, []

    @functools.wraps(begin)
    def halved(sampler, *args, **kwargs):
        begin(sampler, *args, **kwargs)
        whole.append(sampler.batch_size)
        sampler.batch_size = max(1, sampler.batch_size // 2)

    @functools.wraps(give)
    def noted(sampler):
        _changed.add("" if 1 in whole else "half the batch (%d)" % sampler.batch_size)
        return give(sampler)

    sampler_class.__init__, sampler_class.__iter__ = halved, noted


def _around_models(torch, around):
    """Let `around(call, model, args, kwargs)` make each call of a module that no other module makes."""
    call, within = torch.nn.Module.__call__, []

    @functools.wraps(call)
    def outermost(module, *args, **kwargs):
        if within:
            return call(module, *args, **kwargs)
        within.append(module)
        try:
            return around(call, module, args, kwargs)
        finally:
            within.clear()

    torch.nn.Module.__call__ = outermost


def _autocast(torch, call, model, args, kwargs):
    single = any(parameter.dtype == torch.float32 for parameter in model.parameters())
    if torch.is_autocast_enabled() or not single:
        return call(model, *args, **kwargs)
    _changed.add("bf16 autocast around the model")
    with torch.autocast("cuda", dtype=torch.bfloat16), _noting_others(torch.autocast):
        return call(model, *args, **kwargs)


@contextlib.contextmanager
def _noting_others(autocast):
    """Within this, the model's own autocast is noted: Accelerate puts one around its forward()."""
    enter = autocast.__enter__

    def noted_enter(context):
        if context.device == "cuda" and context._enabled:
            _changed.add("")
        return enter(context)

    autocast.__enter__ = noted_enter
    try:
        yield
    finally:
        autocast.__enter__ = enter


def _checkpoint(call, model, args, kwargs):
    if model not in _looked_at:
        _looked_at.add(model)
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing_enable"):
                if not module.is_gradient_checkpointing:
                    module.gradient_checkpointing_enable()
                    _changed.add("gradient_checkpointing_enable()")
                break
            if hasattr(module, "set_grad_checkpointing"):
                module.set_grad_checkpointing()
                _changed.add("set_grad_checkpointing()")
                break
    return call(model, *args, **kwargs)
