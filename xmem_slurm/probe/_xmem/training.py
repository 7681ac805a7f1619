"""What trains in this process, and how: whose trainer, with which batches, and how it shares the
model among ranks?

It is read of the objects of the libraries, not of the script's text: what decides may stand in a
file, a variable or an argument. Names are those of transformers 4.51 to 5.17, accelerate 1.15,
DeepSpeed 0.19, Lightning 2 and torchtitan.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import weakref
from typing import TYPE_CHECKING, Any

from _xmem.process import alive

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Function


class TrainingSeen:
    """What was seen of the libraries that train; the script's own loop is none of them."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        # by library: a reference to the object that trains
        self._trained: dict[str, Callable[[], Any]] = {}
        self._has_deepspeed = False
        with contextlib.suppress(ImportError, ValueError):
            self._has_deepspeed = importlib.util.find_spec("deepspeed") is not None
        # by library: what was read of it last, as it may be gone when it is asked for
        self._last_read: dict[str, dict[str, Any]] = {}

    def of_transformers(self, train: Function, _owner: object) -> Function:
        """Around transformers.Trainer.train."""
        return self._noting("transformers", train)

    def of_accelerate(self, prepare: Function, _owner: object) -> Function:
        """Around accelerate.Accelerator.prepare; the Trainer of transformers uses it, too."""
        return self._noting("accelerate", prepare)

    def of_deepspeed(self, begin: Function, _owner: object) -> Function:
        """Around DeepSpeedEngine's `__init__`; accelerate uses it, too."""
        return self._noting("deepspeed", begin)

    def of_lightning(self, fit: Function, _owner: object) -> Function:
        """Around Lightning's Trainer.fit."""
        return self._noting("lightning", fit)

    def of_lightning_options(self, make: Function, _owner: object) -> Function:
        """Around LightningCLI.instantiate_trainer."""
        return self._noting("lightning-options", make)

    def of_torchtitan(self, read: Function, _owner: object) -> Function:
        """Around what returns torchtitan's configuration: its own module is what the job runs, and
        never imported.
        """

        @functools.wraps(read)
        def reading(*args: Any, **kwargs: Any) -> Any:
            config = read(*args, **kwargs)
            self._trained["torchtitan"] = lambda: config
            return config

        return reading

    def of_torchtitan_sizes(self, checked: Function, _owner: object) -> Function:
        """Around ParallelDims.__post_init__."""
        return self._noting("torchtitan-sizes", checked)

    def _noting(self, library: str, method: Function) -> Function:
        @functools.wraps(method)
        def noting(thing: Any, *args: Any, **kwargs: Any) -> Any:
            # it may be no object to which there are references
            with contextlib.suppress(TypeError):
                self._trained[library] = weakref.ref(thing)
            return method(thing, *args, **kwargs)

        return noting

    def describe(self, drawn: int) -> dict[str, Any]:
        """Return what is known, by the names of `Training` in xmem_slurm/trace.py; `drawn` is known
        elsewhere.
        """
        facts = {"by": "", "method": "ddp" if self._is_replicated() else "", "drawn": drawn}
        for library, read in _READ.items():  # what is built upon others comes after them
            thing = self._trained.get(library, lambda: None)()
            if thing is not None:
                self._last_read[library] = {"by": library} if "-" not in library else {}
                with contextlib.suppress(Exception):  # another release
                    so_far = (facts,) if library == "torchtitan-sizes" else ()
                    self._last_read[library].update(read(thing, *so_far))
            facts.update(self._last_read.get(library, {}))
        if facts["by"]:
            facts["has_deepspeed"] = self._has_deepspeed
        return facts

    def _is_replicated(self) -> bool:
        with contextlib.suppress(AttributeError):
            return alive.any_made(self._torch.nn.parallel.DistributedDataParallel)
        return False


def _of_accelerator(accelerator: Any) -> dict[str, Any]:
    """Return what an Accelerator says; transformers' Trainer has one, too."""
    state = accelerator.state
    facts = {
        "accumulation": int(accelerator.gradient_accumulation_steps),
        "precision": str(accelerator.mixed_precision),
        "method": {"NO": "single", "MULTI_GPU": "ddp"}.get(accelerator.distributed_type.value, ""),
    }
    deepspeed = getattr(state, "deepspeed_plugin", None)
    fsdp = getattr(state, "fsdp_plugin", None)
    if deepspeed is not None:
        config = deepspeed.deepspeed_config.get("zero_optimization", {})
        facts["method"] = "zero%d" % config.get("stage", 0)
        facts["offloaded"] = (config.get("offload_optimizer") or {}).get("device", "none") not in (
            "none",
            None,
        )
    elif fsdp is not None:
        facts["method"] = "fsdp%d" % fsdp.fsdp_version
        if fsdp.fsdp_version == 2 and fsdp.reshard_after_forward is False:
            facts["method"] = "fsdp2-grad"
        offload = fsdp.cpu_offload
        facts["offloaded"] = bool(
            getattr(offload, "offload_params", type(offload).__name__.startswith("CPU"))
        )
        facts["checkpointing"] = bool(fsdp.activation_checkpointing)
    sizes = getattr(accelerator, "parallelism_config", None)
    if (
        sizes is not None
        and getattr(sizes, "dp_replicate_size", 1) > 1
        and getattr(sizes, "dp_shard_size", 1) > 1
    ):
        facts["method"], facts["shards"] = "hsdp", int(sizes.dp_shard_size)
    return facts


def _of_transformers(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    without_bf16 = "fp16" if args.fp16 else "no"
    facts = {
        "micro_batch": int(args.per_device_train_batch_size) * max(1, int(args.n_gpu)),
        "accumulation": int(args.gradient_accumulation_steps),
        "precision": "bf16" if args.bf16 else without_bf16,
    }
    if args.n_gpu > 1:
        facts["method"] = "dp"
    if args.gradient_checkpointing:
        facts["checkpointing"] = True
    return facts


def _of_deepspeed(engine: Any) -> dict[str, Any]:
    return {
        "own_batches": engine.training_dataloader is not None,
        "offloaded": bool(engine.zero_cpu_offload()),
        "method": "zero%d" % engine.zero_optimization_stage(),
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "accumulation": int(engine.gradient_accumulation_steps()),
    }


def _of_lightning(trainer: Any) -> dict[str, Any]:
    """Return what Lightning's Trainer says; its batch is that of one DataLoader, where it has
    one.
    """
    strategy, precision = trainer.strategy, str(trainer.precision)
    without_bf16 = "fp16" if precision.startswith("16") else "no"
    named = {"SingleDeviceStrategy": "single", "DDPStrategy": "ddp", "FSDPStrategy": "fsdp1"}
    facts = {
        "method": named.get(type(strategy).__name__, ""),
        "accumulation": int(trainer.accumulate_grad_batches),
        "precision": "bf16" if precision.startswith("bf16") else without_bf16,
    }
    batch = getattr(trainer.train_dataloader, "batch_size", None)
    if isinstance(batch, int):
        facts["micro_batch"] = batch
    if type(strategy).__name__ == "DeepSpeedStrategy":
        zero = strategy.config["zero_optimization"]
        facts["method"] = "zero%d" % zero["stage"]
        facts["offloaded"] = (zero.get("offload_optimizer") or {}).get("device", "none") not in (
            "none",
            None,
        )
    elif facts["method"] == "fsdp1":
        facts["offloaded"] = bool(
            getattr(strategy.cpu_offload, "offload_params", strategy.cpu_offload)
        )
    return facts


def _of_torchtitan(config: Any) -> dict[str, Any]:
    facts = {
        "method": "fsdp2",
        "micro_batch": int(config.training.local_batch_size),
        "precision": "bf16",  # or as training.mixed_precision_param says: nothing that is told here
        "accumulation": int(
            config.training.global_batch_size
        ),  # of all ranks, until those are known
    }
    mode = getattr(config.activation_checkpoint, "mode", None)
    facts["can_checkpoint"], facts["checkpointing"] = mode is not None, mode not in (None, "none")
    if config.parallelism.fsdp_reshard_after_forward == "never":
        facts["method"] = "fsdp2-grad"
    return facts


def _of_torchtitan_sizes(sizes: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what degrees make of what a configuration says; nothing is told of pipelines,
    contexts, experts.
    """
    if max(sizes.pp, sizes.cp, sizes.ep) > 1:
        return {"method": "others", "micro_batch": 0, "accumulation": 0}
    ranks = sizes.dp_replicate * sizes.dp_shard
    step = facts["accumulation"]
    changes = {"shards": sizes.dp_shard, "tensor": sizes.tp, "accumulation": 1}
    if step > 0:
        changes["accumulation"] = max(1, step // (facts["micro_batch"] * ranks))
    if sizes.dp_shard == 1:
        changes["method"] = "ddp" if sizes.dp_replicate > 1 else "single"
    elif sizes.dp_replicate > 1:
        changes["method"] = "hsdp"
    return changes


_READ: dict[str, Callable[..., dict[str, Any]]] = {
    "torchtitan": _of_torchtitan,
    "torchtitan-sizes": _of_torchtitan_sizes,
    "deepspeed": _of_deepspeed,
    "accelerate": _of_accelerator,
    "lightning": _of_lightning,
    "lightning-options": lambda _cli: {"has_options": True},
    "transformers": _of_transformers,
}
