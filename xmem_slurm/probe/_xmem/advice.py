"""One change to the job, for a dry run that asks whether it would then fit (XMEM_ADVICE); in no
other dry run.

    batch           every DataLoader that is gone through with gradients on gives half of its batch,
                    or XMEM_BATCH samples, if all of those give batches of one size
    bf16            autocast around each call of a model from the script, where its parameters are
                    fp32 and none is on, nor comes on within it
    checkpointing   what transformers calls gradient_checkpointing_enable, timm
                    set_grad_checkpointing

`JobChange.changed` says what was changed in fact: a script may have no DataLoader, or have autocast
on already.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from _xmem.annotations import Function, Module


class JobChange:
    """The change that is tried in this process."""

    def __init__(self, torch: ModuleType, batch: str | None = None) -> None:
        self._torch = torch
        self._changes: set[str] = set()  # in words; "" is one that was not made in one way
        self._looked_at: weakref.WeakSet[Module] = weakref.WeakSet()
        self._batch = int(batch) if batch else None  # what is wanted of each; None: half of it
        # of each sampler, as the job has them
        self._batch_sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._called: list[Module] = []  # the module that no other one called

    def changed(self) -> str:
        """Return what was changed, in words for people; empty where nothing was, or not in one
        way.
        """
        return next(iter(self._changes)) if len(self._changes) == 1 else ""

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    def resized(self, begin: Function, _sampler_class: type) -> Function:
        """A DataLoader, also one over an IterableDataset, takes the size of its batches from a
        BatchSampler.
        """

        @functools.wraps(begin)
        def resized(sampler: Any, *args: Any, **kwargs: Any) -> None:
            begin(sampler, *args, **kwargs)
            self._batch_sizes[sampler] = sampler.batch_size
            sampler.batch_size = self._wanted(sampler.batch_size)

        return resized

    def given(self, give: Function, _sampler_class: type) -> Function:
        """Around what gives batches: only now that change is one. Those of an evaluation stay as
        they are.
        """

        @functools.wraps(give)
        def noted_give(sampler: Any) -> Any:
            batch_size = self._batch_sizes.get(sampler, sampler.batch_size)
            training = self._torch.is_grad_enabled()
            sampler.batch_size = self._wanted(batch_size) if training else batch_size
            if training and self._batch:
                self._changes.add("a batch of %d for %d" % (self._batch, batch_size))
            elif training:
                self._changes.add(
                    "half the batch (%d)" % sampler.batch_size if batch_size > 1 else ""
                )
            return give(sampler)

        return noted_give

    def _wanted(self, batch_size: int) -> int:
        return self._batch or max(1, batch_size // 2)

    def in_bf16(self, call: Function, _module_class: type) -> Function:
        """Around Module.__call__."""
        return self._outermost(call, self._autocast)

    def with_checkpointing(self, call: Function, _module_class: type) -> Function:
        """Around Module.__call__."""
        return self._outermost(call, self._checkpoint)

    def _outermost(self, call: Function, around: Function) -> Function:
        """Let `around(call, model, args, kwargs)` make each call of a module that no other module
        makes.
        """
        within = self._called

        @functools.wraps(call)
        def outermost(module: Module, *args: Any, **kwargs: Any) -> Any:
            if within:
                return call(module, *args, **kwargs)
            within.append(module)
            try:
                return around(call, module, args, kwargs)
            finally:
                within.clear()

        return outermost

    def _autocast(
        self, call: Function, model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the model under autocast, if its parameters are fp32 and none is on."""
        torch = self._torch
        single = any(parameter.dtype == torch.float32 for parameter in model.parameters())
        if torch.is_autocast_enabled() or not single:
            return call(model, *args, **kwargs)
        self._changes.add("bf16 autocast around the model")
        with torch.autocast("cuda", dtype=torch.bfloat16), self._noting_others(torch.autocast):
            return call(model, *args, **kwargs)

    @contextlib.contextmanager
    def _noting_others(self, autocast: Any) -> Iterator[None]:
        """Within this, the model's own autocast is noted: Accelerate puts one around its
        forward().
        """
        enter = autocast.__enter__

        def noted_enter(context: Any) -> Any:
            if context.device == "cuda" and context._enabled:
                self._changes.add("")
            return enter(context)

        autocast.__enter__ = noted_enter
        try:
            yield
        finally:
            autocast.__enter__ = enter

    def _checkpoint(
        self, call: Function, model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Switch checkpointing on where the model, or the first part of it that can, has a method
        for it.
        """
        if model not in self._looked_at:
            self._looked_at.add(model)
            for module in model.modules():
                if hasattr(module, "gradient_checkpointing_enable"):
                    if not module.is_gradient_checkpointing:
                        module.gradient_checkpointing_enable()
                        self._changes.add("gradient_checkpointing_enable()")
                    break
                if hasattr(module, "set_grad_checkpointing"):
                    module.set_grad_checkpointing()
                    self._changes.add("set_grad_checkpointing()")
                    break
        return call(model, *args, **kwargs)
