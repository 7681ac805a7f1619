"""What the probe hooks into and reads of torch and of other packages: one table for each engine,
applied by one loop.

A name that this torch has not, or has otherwise, is a doubt and never the end of the job's script:
what would have stood in its place stays away. Names are those of torch 2.4 to 2.15, unless a row
says since when there is one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem import doubts, imports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

UNSEEN = "hook-missing"
"""The code of what is not seen for want of a hook."""
VALUES = "values-unknown"
SITES = "sites-unknown"
ESSENTIAL = None
"""In place of a code: without this nothing can be recorded."""
NO_MATTER = ""
"""In place of a code: without this a dry run takes longer."""


class Patch(NamedTuple):
    """One name: `owner` is "module" or "module:Class".

    `by` is "part.method": the method is given what has the name and its owner, and returns what
    takes its place; it may return the same, where that is a registry of torch's own to be called.
    "part" alone reads the name: where it is gone, no row of that part is applied.
    """

    owner: str
    name: str
    by: str
    source: str
    """Where it is defined upstream."""
    doubt: str | None = UNSEEN
    since: str = "2.4"
    """The first release of torch that has it, of those that are supported."""
    late: bool = False
    """Whether its module is waited for: a job may never import it."""

    @property
    def part(self) -> str:
        """What hooks in there."""
        return self.by.partition(".")[0]

    @property
    def is_read(self) -> bool:
        """Whether the part needs it as it is."""
        return "." not in self.by

    def __str__(self) -> str:
        """As a person would write it."""
        return self.owner.replace(":", ".") + "." + self.name


class CannotRecordError(RuntimeError):
    """This torch lacks a name without which nothing can be recorded."""


def apply(table: Iterable[Patch], parts: Mapping[str, Any], version: str) -> set[str]:
    """Put every replacement of `table` in its place, made by `parts` (name: what has the methods),
    as far as they go.

    `version` is torch's. Returns the names of the parts that are not hooked in, as torch lacks what
    they read.

    Raises:
        CannotRecordError: it lacks what is essential.
    """
    rows = [row for row in table if row.part in parts and _release(version) >= _release(row.since)]
    away = {row.part for row in rows if row.is_read and not _has(row)}
    for row in rows:
        if not row.is_read and row.part not in away:
            if row.late:
                module = row.owner.partition(":")[0]
                imports.after(module, functools.partial(_put_late, row, parts[row.part]))
            else:
                _put(row, parts[row.part])
    return away


def _has(row: Patch) -> bool:
    """Whether a name that is only read is there; if not, that is noted."""
    with contextlib.suppress(Exception):
        if hasattr(_owner(row), row.name):
            return True
    _missing(row)
    return False


def _put(row: Patch, part: Any) -> None:
    """Put one replacement in its place. Whatever goes wrong is no matter of the script's."""
    try:
        owner = _owner(row)
        setattr(
            owner,
            row.name,
            getattr(part, row.by.partition(".")[2])(getattr(owner, row.name), owner),
        )
    except Exception:
        _missing(row)


def _put_late(row: Patch, part: Any, _module: ModuleType) -> None:
    """The same once the module is there."""
    _put(row, part)


def _missing(row: Patch) -> None:
    if row.doubt is ESSENTIAL:
        raise CannotRecordError(
            "this torch has no %s, as releases up to 2.15 have (%s)" % (row, row.source)
        )
    if row.doubt != NO_MATTER:
        doubts.note(row.doubt, "no %s in this release" % (row,))


def _owner(row: Patch) -> Any:
    """Return the module or class that has the name."""
    module, _, path = row.owner.partition(":")
    return functools.reduce(getattr, filter(None, path.split(".")), importlib.import_module(module))


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _rows(owner: str, names: str, by: str, source: str = "", **fields: Any) -> tuple[Patch, ...]:
    """Return a row for each of `names`; `source` is the owner's own module, unless that is a
    package or C++.
    """
    source = source or owner.partition(":")[0].replace(".", "/") + ".py"
    return tuple(Patch(owner, name, by, source, **fields) for name in names.split())


_CUDA, _MEMORY, _MODULE = "torch.cuda", "torch.cuda.memory", "torch.nn.modules.module:Module"
_C10D, _DISTRIBUTED = "torch.distributed.distributed_c10d", "torch.distributed"
_C10D_SOURCE = "torch/distributed/distributed_c10d.py"
_GROUP = "torch:_C._distributed_c10d.ProcessGroup"
_GROUP_SOURCE = "torch/csrc/distributed/c10d/init.cpp"
_AUTOGRAD_SOURCE, _CUDA_SOURCE = "torch/csrc/autograd/init.cpp", "torch/csrc/cuda/Module.cpp"
_VARIABLES = "torch/_C/_VariableFunctions.pyi"
_HOST_FACTORIES = """
    tensor as_tensor zeros ones full arange linspace logspace eye triu_indices tril_indices
    zeros_like ones_like full_like
"""
_TRANSFORMS = "_grad_increment_nesting _jvp_increment_nesting"
_FIRST_VALUES = (
    "_no_grad_uniform_ _no_grad_normal_ _no_grad_trunc_normal_ kaiming_uniform_ kaiming_normal_"
)
_COLLECTIVES = """
    allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced gather scatter
    allreduce allreduce_coalesced reduce reduce_scatter _reduce_scatter_base
    reduce_scatter_tensor_coalesced alltoall alltoall_base
"""
_OBJECTS = """
    all_gather_object gather_object broadcast_object_list scatter_object_list send_object_list
    recv_object_list
"""

_BOTH = (
    *_rows("torch.optim.optimizer", "register_optimizer_step_post_hook", "engine.steps_counted"),
    *_rows("torch.autograd", "backward", "engine.backward", "torch/autograd/__init__.py"),
)

_FILM = "matplotlib.animation:FuncAnimation"

OFFLINE = (
    *_rows("urllib.request:AbstractHTTPHandler", "do_open", "downloads.around_urllib"),
    *_rows("requests.adapters:HTTPAdapter", "send", "downloads.around_requests", late=True),
    *_rows("torchvision.datasets.utils", "check_md5", "downloads.trusting_own", late=True),
    *_rows("torch.hub", "load_state_dict_from_url", "weights.loaded"),
    *_rows("torch.utils.model_zoo", "load_url", "weights.loaded", late=True),
    *_rows("timm.models._builder", "load_pretrained", "weights.kept_of_timm", late=True),
    *_rows(
        "numpy",
        "histogram",
        "plots.of_one_number",
        "numpy: numpy/lib/_histograms_impl.py",
        late=True,
    ),
    *_rows(
        _FILM,
        "new_saved_frame_seq",
        "plots.shortened",
        "matplotlib: lib/matplotlib/animation.py",
        late=True,
    ),
)

_PLANNER = "torch.distributed.checkpoint.default_planner"
_OPTIMIZERS = "torch.distributed.fsdp._optim_utils"
_PLANNER_SOURCE = "torch/distributed/checkpoint/_dedup_save_plans.py"

_RANKS = (
    *_rows(_DISTRIBUTED, "TCPStore FileStore", "rank.store", "torch/distributed/__init__.py"),
    *_rows("torch.distributed.rendezvous", "TCPStore FileStore", "rank.store"),
    *(
        Patch(owner, name, by, _C10D_SOURCE)
        for owner in (_C10D, _DISTRIBUTED)
        for name, by in (
            ("ProcessGroupGloo", "rank.gloo"),
            ("monitored_barrier", "rank.monitored_barrier"),
            ("destroy_process_group", "rank.remembered"),
            ("batch_isend_irecv", "peers.told_as_one"),
            *((name, "peers.objects") for name in _OBJECTS.split()),
            *((name, "first.objects") for name in _OBJECTS.split()),
        )
    ),
    *_rows("torch.optim.optimizer", "register_optimizer_step_post_hook", "rank.let_watchdog_pass"),
    *_rows("torch.nn.parallel.distributed:DistributedDataParallel", "__init__", "alive.watched"),
    *_rows(_C10D, "_rank_not_in_group _get_default_group _get_process_group_name", "peers"),
    *_rows(_GROUP, "send", "peers.telling", _GROUP_SOURCE),
    *_rows(_GROUP, "recv", "peers.told", _GROUP_SOURCE),
    *_rows(_GROUP, "broadcast", "peers.telling_all", _GROUP_SOURCE),
    *_rows(_GROUP, _COLLECTIVES, "collectives.among_alike", _GROUP_SOURCE),
    *_rows(_GROUP, _COLLECTIVES + " barrier broadcast", "first.around", _GROUP_SOURCE),
    *_rows("torch.distributed.launcher.api", "launch_agent", "launch.launch_agent", late=True),
    *_rows("torch.multiprocessing.spawn", "start_processes", "launch.start_processes"),
    *_rows(
        "torch.multiprocessing",
        "start_processes",
        "launch.start_processes",
        "torch/multiprocessing/spawn.py",
    ),
    *_rows(_PLANNER, "_validate_global_plan", "checkpoints.always_valid", late=True),
    *_rows(_PLANNER, "dedup_save_plans", "checkpoints.to_lowest_rank", _PLANNER_SOURCE, late=True),
    *_rows(_OPTIMIZERS, "_map_param_key_to_optim_keys", "checkpoints.with_all_keys", late=True),
    *_rows(_OPTIMIZERS, "_allgather_state_info", "checkpoints.of_all_ranks", late=True),
)

_DISPATCH = "torch/csrc/utils/python_dispatch.cpp"

_VALUES = tuple(
    row._replace(doubt=VALUES)
    for row in (
        *_rows(
            "torch:_C",
            "_after_ADInplaceOrView_keyset _after_autograd_keyset _dispatch_dump",
            "values",
            _DISPATCH,
        ),
        *_rows(
            "torch:_C", "_ExcludeDispatchKeyGuard _AutoDispatchBelowAutograd", "values", _DISPATCH
        ),
        *_rows("torch:_C", "_VariableFunctions", "values", _VARIABLES),
        *_rows(
            "torch:_C",
            "_len_torch_dispatch_stack _current_autograd_node",
            "values",
            _AUTOGRAD_SOURCE,
        ),
        *_rows("torch:_C", "_InferenceMode", "values", _AUTOGRAD_SOURCE),
        *_rows(
            "torch:_C._functorch",
            "is_functorch_wrapped_tensor",
            "values",
            "torch/csrc/functorch/init.cpp",
        ),
        *_rows("torch.autograd.graph", "increment_version", "values"),
        *_rows("torch.multiprocessing.reductions", "StorageWeakRef", "values"),
        *_rows("torch.utils._device", "_device_constructors", "values"),
        *_rows("torch.jit._builtins", "_builtin_table", "values"),
        *_rows(_MODULE, "_call_impl", "values"),
        *_rows("torch._tensor_str", "_str", "values.printed"),
        *_rows("torch.autograd.grad_mode:inference_mode", "__enter__", "values.entered"),
        *_rows("torch", "set_autocast_cache_enabled", "values.cache_switched", _AUTOGRAD_SOURCE),
        *_rows("torch", "is_autocast_cache_enabled", "values.cache_is_on", _AUTOGRAD_SOURCE),
        *_rows("torch", _HOST_FACTORIES, "values.factory", _VARIABLES),
        *_rows(
            "torch:Tensor",
            "new_zeros new_ones new_full new_tensor",
            "values.factory",
            "torch/_tensor.py",
        ),
        *_rows("torch", "randint randperm randint_like", "values.draw", _VARIABLES),
        *_rows(
            "torch.autograd", "_make_grads", "values.first_gradients", "torch/autograd/__init__.py"
        ),
        *_rows(
            "torch._C._functorch",
            _TRANSFORMS,
            "values.transformed",
            "torch/csrc/functorch/init.cpp",
        ),
        *_rows(
            "torch._functorch.eager_transforms",
            _TRANSFORMS,
            "values.transformed",
            "torch/csrc/functorch/init.cpp",
        ),
        *_rows("torch.storage:_StorageBase", "to cuda", "values.loaded"),
    )
)

_TUNER = "torch._inductor.runtime.coordinate_descent_tuner:CoordescTuner"
_RESET = "_accelerator_resetPeakStats _accelerator_resetAccumulatedStats"

_WEIGHTS = (
    *_rows(
        "torch:_C._nn",
        "_parse_to",
        "host_weights",
        "tools/autograd/templates/python_nn_functions.cpp",
    ),
    *_rows("torch.nn.init", _FIRST_VALUES, "host_weights.drawn"),
    *_rows(
        "torch:Tensor",
        "to",
        "host_weights.converted",
        "torch/csrc/autograd/python_variable_methods.cpp",
    ),
    *_rows(
        "torch:Tensor",
        "half bfloat16 float",
        "host_weights.cast",
        "torch/csrc/autograd/python_variable_methods.cpp",
    ),
    *_rows("torch:Tensor", "copy_", "host_weights.copied", _VARIABLES),
    *_rows(
        "torch:Tensor",
        "cuda",
        "host_weights.moved",
        "torch/csrc/autograd/python_variable_methods.cpp",
    ),
    *_rows("torch", "load", "host_weights.read", "torch/serialization.py"),
    *_rows(
        "torch:_C.PyTorchFileWriter",
        "write_record",
        "host_weights.written",
        "torch/csrc/jit/python/init.cpp",
    ),
    *_rows("torch.storage:_StorageBase", "cpu", "host_weights.fetched"),
    *_rows(
        "safetensors",
        "safe_open",
        "host_weights.opened",
        "safetensors: py_src/safetensors/__init__.py",
        late=True,
    ),
    *_rows(
        "safetensors.torch",
        "save_file",
        "host_weights.saved",
        "safetensors: py_src/safetensors/torch.py",
        late=True,
    ),
)

_SIZES = "training.of_torchtitan_sizes"
_TRAINERS = (
    *_rows("transformers.trainer:Trainer", "train", "training.of_transformers", late=True),
    *_rows("accelerate.accelerator:Accelerator", "prepare", "training.of_accelerate", late=True),
    *_rows(
        "deepspeed.runtime.engine:DeepSpeedEngine", "__init__", "training.of_deepspeed", late=True
    ),
    *_rows("lightning.pytorch.trainer.trainer:Trainer", "fit", "training.of_lightning", late=True),
    *_rows("pytorch_lightning.trainer.trainer:Trainer", "fit", "training.of_lightning", late=True),
    *_rows(
        "lightning.pytorch.cli:LightningCLI",
        "instantiate_trainer",
        "training.of_lightning_options",
        late=True,
    ),
    *_rows(
        "pytorch_lightning.cli:LightningCLI",
        "instantiate_trainer",
        "training.of_lightning_options",
        late=True,
    ),
    *_rows(
        "torchtitan.config.manager:ConfigManager", "parse_args", "training.of_torchtitan", late=True
    ),
    *_rows("torchtitan.distributed.parallel_dims:ParallelDims", "__post_init__", _SIZES, late=True),
)

_REPEATS = (
    *_rows("torch.utils", "_pytree", "calls", "torch/utils/_pytree.py"),
    *_rows("torch:_C", "_AutoDispatchBelowAutograd", "calls", _DISPATCH),
    *_rows("torch:_C._autograd", "_get_sequence_nr", "calls", _AUTOGRAD_SOURCE),
    *_rows("torch:_C", "_storage_Use_Count _cuda_getCurrentRawStream", "calls", _CUDA_SOURCE),
    *_rows("torch:_C", "_cuda_cudaCachingAllocator_raw_alloc", "calls", _CUDA_SOURCE),
    *_rows("torch:_C", "_cuda_cudaCachingAllocator_raw_delete", "calls", _CUDA_SOURCE),
    *_rows("torch:Tensor", "_use_count", "calls", "torch/csrc/autograd/python_variable.cpp"),
    *_rows("torch.nn.modules.module", "_global_forward_hooks _global_forward_pre_hooks", "calls"),
    *_rows("torch.nn.modules.module", "_global_backward_hooks _global_backward_pre_hooks", "calls"),
    *_rows("torch.autograd.forward_ad", "_current_level", "calls"),
    *_rows(_MODULE, "__call__", "calls.called"),
    *_rows(_MODULE, "__setattr__ __delattr__", "calls.changed"),
    *_rows(_MODULE, "add_module register_parameter register_buffer", "calls.registered"),
    *_rows(_MODULE, "_named_members", "walks.members"),
    *_rows(
        "torch.autograd", "_engine_run_backward", "calls.run_backward", "torch/autograd/__init__.py"
    ),
    *_rows("torch", "clear_autocast_cache", "calls.uncached", _AUTOGRAD_SOURCE),
    *_rows("torch.optim.optimizer:Optimizer", "profile_hook_step", "optimizer_steps.hooked"),
    *_rows("torch.nn.utils.clip_grad", "_get_total_norm", "clipping.measured", since="2.7"),
    *_rows("torch.nn.utils.clip_grad", "_clip_grads_with_norm_", "clipping.scaled", since="2.7"),
    *_rows("torch.autograd.profiler", "_is_profiler_enabled", "ranges"),
    *_rows("torch.autograd.profiler:record_function", "__enter__", "ranges.opened"),
)

FIRST = tuple(
    row._replace(doubt=NO_MATTER, late=True)
    for row in (
        *_rows("torch._compile", "_disable_dynamo", "dynamo.disabled"),
        *_rows("torch.optim.optimizer", "_use_grad_for_differentiable", "dynamo.stepping"),
    )
)
"""Before torch is imported."""

DEVICE = (
    *_rows(
        _CUDA, "_lazy_call", "engine.begun_with_cuda", "torch/cuda/__init__.py", doubt=ESSENTIAL
    ),
    *_rows(_MEMORY, "_snapshot _record_memory_history", "engine", doubt=ESSENTIAL),
    *_rows(
        "torch:_C",
        "_cuda_memoryStats _cuda_getDeviceCount",
        "served",
        _CUDA_SOURCE,
        doubt=ESSENTIAL,
    ),
    *_BOTH,
    *_rows("torch.optim.optimizer:Optimizer", "__init__", "alive.watched"),
    *_rows(_MEMORY, "memory_stats_as_nested_dict", "served.asked"),
    *_rows("torch:_C", "_cuda_resetPeakMemoryStats", "served.around_reset", _CUDA_SOURCE),
    *_rows("torch:_C", "_cuda_resetAccumulatedMemoryStats", "served.around_reset", _CUDA_SOURCE),
    *_rows(
        "torch:_C", _RESET, "served.around_reset", "torch/csrc/DeviceAccelerator.cpp", since="2.9"
    ),
    *_rows(_MEMORY, "set_per_process_memory_fraction _set_allocator_settings", "limits.set_by_job"),
    *_rows(_CUDA, "set_per_process_memory_fraction", "limits.set_by_job", "torch/cuda/memory.py"),
    *_rows("torch.utils.data.dataloader:DataLoader", "_get_iterator", "course.begun"),
    *_rows("torch.utils.data.dataloader:_BaseDataLoaderIter", "__next__", "course.given"),
    *_rows("torch.utils.data._utils.worker", "get_worker_info", "course"),
    *_rows(
        "torch.utils.data", "get_worker_info", "course.asked", "torch/utils/data/_utils/worker.py"
    ),
    *_rows("torch.utils.data._utils.fetch:_MapDatasetFetcher", "fetch", "course.fetched"),
    *_rows("torch.utils.data._utils.pin_memory", "pin_memory", "course.pinned"),
    *_rows(_MODULE, "train", "walks.trained"),
    *_rows(_MODULE, "train", "course.trained"),
    *_rows("torch", "save", "course.saved", "torch/serialization.py"),
    *_REPEATS,
    *_RANKS,
    *_TRAINERS,
    *_VALUES,
    *_WEIGHTS,
    *_rows(_MODULE, "_call_impl", "reads"),
    *_rows(
        "triton.backends",
        "backends",
        "triton.backends",
        "triton: python/triton/backends/__init__.py",
        late=True,
    ),
    *_rows("torch:_TorchCompileInductorWrapper", "__call__", "triton.eager", "torch/__init__.py"),
    *_rows(_TUNER, "autotune", "triton.untuned", late=True),
    *_rows("torch._inductor.fx_passes.pad_mm", "_skip_do_bench_times", "triton.padded", late=True),
    *_rows("torch:Tensor", "record_stream", "streams.noted", "torch/_tensor.py"),
    *_rows(
        "torch.cuda._gpu_trace", "register_callback_for_memory_allocation", "sites", doubt=SITES
    ),
    *_rows("torch:_C", "_activate_gpu_trace", "sites", "torch/csrc/Module.cpp", doubt=SITES),
    *_rows("torch:_C", "_current_autograd_node", "sites", _AUTOGRAD_SOURCE, doubt=SITES),
    *_rows("torch:_C._autograd", "_get_sequence_nr", "sites", _AUTOGRAD_SOURCE, doubt=SITES),
    *_rows(_MODULE, "_wrapped_call_impl", "sites", doubt=SITES),
)

_SAMPLER = "torch.utils.data.sampler:BatchSampler"
ADVICE = {
    "batch": (
        *_rows(_SAMPLER, "__init__", "advice.resized"),
        *_rows(_SAMPLER, "__iter__", "advice.given"),
    ),
    "bf16": _rows(_MODULE, "__call__", "advice.in_bf16"),
    "checkpointing": _rows(_MODULE, "__call__", "advice.with_checkpointing"),
}
"""What is hooked in beside for each change that a dry run asks for (XMEM_ADVICE)."""

_DONE = """
    init _lazy_init set_device synchronize empty_cache ipc_collect manual_seed manual_seed_all seed
    seed_all reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction
    set_rng_state set_rng_state_all set_stream
"""
_ASKED = """
    is_available is_initialized device_count current_device get_device_name get_device_capability
    get_device_properties get_arch_list mem_get_info is_bf16_supported is_current_stream_capturing
    can_device_access_peer get_rng_state get_rng_state_all memory_stats memory_summary
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization
"""
_OF_MEMORY = """
    _lazy_init empty_cache reset_peak_memory_stats reset_max_memory_allocated
    set_per_process_memory_fraction memory_allocated max_memory_allocated memory_reserved
    max_memory_reserved is_initialized mem_get_info memory_stats memory_summary
"""
_STREAMS = "current_stream default_stream stream Stream Event device device_of"
_ACCELERATORS = (
    "is_available current_accelerator device_count current_device_idx set_device_idx synchronize"
)
_ACCELERATOR, _ACCELERATOR_SOURCE = "torch.accelerator", "torch/accelerator/__init__.py"

CPU = (
    *_rows(_CUDA, _DONE + _ASKED, "gpu.answer", "torch/cuda/__init__.py"),
    *_rows(_MEMORY, _OF_MEMORY, "gpu.answer"),
    *_rows(_CUDA, _STREAMS, "gpu.idle", "torch/cuda/__init__.py"),
    *_rows("torch.version", "cuda", "gpu.version"),
    *_rows("torch:Tensor", "pin_memory", "gpu.pinned", "torch/_tensor.py"),
    *_rows("torch:Tensor", "is_pinned", "gpu.is_pinned", "torch/_tensor.py"),
    *_rows(_ACCELERATOR, _ACCELERATORS, "gpu.answer", _ACCELERATOR_SOURCE, since="2.6"),
    *_rows(
        _ACCELERATOR,
        "current_device_index set_device_index",
        "gpu.answer",
        _ACCELERATOR_SOURCE,
        since="2.8",
    ),
    *_rows(_ACCELERATOR, "current_stream", "gpu.idle", _ACCELERATOR_SOURCE, since="2.6"),
    *_rows("torch", "Generator", "redirect.generator", "torch/csrc/Generator.cpp"),
    *_rows("torch:autocast", "__init__", "redirect.autocast", "torch/amp/autocast_mode.py"),
    *_rows(
        "torch",
        "is_autocast_enabled get_autocast_dtype",
        "redirect.asked_of_autocast",
        _AUTOGRAD_SOURCE,
    ),
    *_rows("torch", "get_autocast_gpu_dtype", "redirect.gpu_type", _AUTOGRAD_SOURCE),
    *_rows("torch.amp.grad_scaler:GradScaler", "__init__", "redirect.scaler"),
    *_rows("torch", "load", "redirect.load", "torch/serialization.py"),
    *_rows("torch:_C", "_get_mkldnn_enabled _set_mkldnn_enabled", "lstm", "torch/csrc/Module.cpp"),
    *_rows("torch.autograd", "_disable_profiler", "engine", _AUTOGRAD_SOURCE, doubt=ESSENTIAL),
    *_rows("torch.nn.parameter:Parameter", "__new__", "redirect.parameter"),
    *_rows("torch.utils._device:DeviceContext", "__torch_function__", "redirect.device_context"),
    *_rows("torch.nn.functional", "dropout", "ways.dropout"),
    *_rows("torch.nn.functional", "scaled_dot_product_attention", "ways.attention"),
    *_rows("torch.nn.functional", "cross_entropy", "ways.cross_entropy"),
    *_rows("torch.utils._foreach_utils", "_get_foreach_kernels_supported_devices", "ways.foreach"),
    *_rows("torch.optim.optimizer", "_get_foreach_kernels_supported_devices", "ways.foreach"),
    *_rows(
        "torch.backends.cudnn",
        "is_acceptable",
        "ways.without_cudnn",
        "torch/backends/cudnn/__init__.py",
    ),
    *_BOTH,
    *_rows("torch.nn.modules.module", "register_module_forward_pre_hook", "engine.module_entered"),
    *_rows("torch.nn.modules.module", "register_module_forward_hook", "engine.module_left"),
)
