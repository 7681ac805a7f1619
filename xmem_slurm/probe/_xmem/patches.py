"""What the probe hooks into and reads of torch and of other packages: one table for each engine, applied by one loop.

A name that this torch has not, or has otherwise, is a doubt and never the end of the job's script: what would have
stood in its place stays away. Names are those of torch 2.4 to 2.15, unless a row says since when there is one.
"""

import contextlib
import functools
import importlib
import re
from typing import NamedTuple, Optional

from _xmem import doubts, imports

UNSEEN = "hook-missing"
"""The code of what is not seen for want of a hook."""
VALUES = "values-unknown"
SITES = "sites-unknown"
ESSENTIAL = None
"""In place of a code: without this nothing can be recorded."""


class Patch(NamedTuple):
    """One name: `owner` is "module" or "module:Class".

    `by` is "part.method": the method is given what has the name and its owner, and returns what takes its place; it may
    return the same, where that is a registry of torch's own to be called. "part" alone reads the name: where it is
    gone, no row of that part is applied.
    """

    owner: str
    name: str
    by: str
    source: str
    """Where it is defined upstream: by default in torch, else the package is named."""
    doubt: Optional[str] = UNSEEN
    since: str = "2.4"
    """The first release of torch that has it, of those that are supported."""
    late: bool = False
    """Whether its module is waited for: a job may never import it."""

    @property
    def part(self):
        """What hooks in there."""
        return self.by.partition(".")[0]

    @property
    def is_read(self):
        """Whether the part needs it as it is."""
        return "." not in self.by

    def __str__(self):
        """As a person would write it."""
        return self.owner.replace(":", ".") + "." + self.name


class CannotRecordError(RuntimeError):
    """This torch lacks a name without which nothing can be recorded."""


def apply(table, parts, version):
    """Put every replacement of `table` in its place, made by `parts` (name: what has the methods), as far as they go.

    `version` is torch's. Returns the names of the parts that are not hooked in, as torch lacks what they read.

    Raises:
        CannotRecordError: it lacks what is essential.
    """
    rows = [row for row in table if row.part in parts and _release(version) >= _release(row.since)]
    away = {row.part for row in rows if row.is_read and not _has(row)}
    for row in rows:
        if not row.is_read and row.part not in away:
            if row.late:
                module = row.owner.partition(":")[0]
                imports.after(module, lambda _module, row=row: _put(row, parts[row.part]))
            else:
                _put(row, parts[row.part])
    return away


def _has(row):
    """Whether a name that is only read is there; if not, that is noted."""
    with contextlib.suppress(Exception):
        if hasattr(_owner(row), row.name):
            return True
    _missing(row)
    return False


def _put(row, part):
    """Put one replacement in its place. Whatever goes wrong is no matter of the script's."""
    try:
        owner = _owner(row)
        setattr(owner, row.name, getattr(part, row.by.partition(".")[2])(getattr(owner, row.name), owner))
    except Exception:
        _missing(row)


def _missing(row):
    if row.doubt is ESSENTIAL:
        raise CannotRecordError("this torch has no %s, as releases up to 2.15 have (%s)" % (row, row.source))
    doubts.note(row.doubt, "no %s in this release" % (row,))


def _owner(row):
    """Return the module or class that has the name."""
    module, _, path = row.owner.partition(":")
    return functools.reduce(getattr, filter(None, path.split(".")), importlib.import_module(module))


def _release(version):
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _each(owner, names, by, source, **more):
    """Return a row for each of `names`."""
    return tuple(Patch(owner, name, by, source, **more) for name in names.split())


_C10D, _DISTRIBUTED = "torch.distributed.distributed_c10d", "torch.distributed"
_GROUP = "torch:_C._distributed_c10d.ProcessGroup"
_C10D_SOURCE, _DATA_SOURCE = "torch/distributed/distributed_c10d.py", "torch/utils/data/dataloader.py"
_MODULE_SOURCE, _INIT_SOURCE = "torch/nn/modules/module.py", "torch/csrc/distributed/c10d/init.cpp"
_MEMORY, _MEMORY_SOURCE = "torch.cuda.memory", "torch/cuda/memory.py"
_HOST_FACTORIES = """
    tensor as_tensor zeros ones full arange linspace logspace eye triu_indices tril_indices
    zeros_like ones_like full_like
"""
_COLLECTIVES = """
    allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced gather scatter allreduce
    allreduce_coalesced reduce reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced alltoall
    alltoall_base
"""
_OBJECTS = """
    all_gather_object gather_object broadcast_object_list scatter_object_list send_object_list recv_object_list
"""

_BOTH = (
    Patch(
        "torch.optim.optimizer", "register_optimizer_step_post_hook", "engine.steps_counted", "torch/optim/optimizer.py"
    ),
    Patch("torch.autograd", "backward", "engine.backward", "torch/autograd/__init__.py"),
)

OFFLINE = (
    Patch("urllib.request:AbstractHTTPHandler", "do_open", "downloads.around_urllib", "Python: Lib/urllib/request.py"),
    Patch(
        "requests.adapters:HTTPAdapter",
        "send",
        "downloads.around_requests",
        "requests: src/requests/adapters.py",
        late=True,
    ),
    Patch(
        "torchvision.datasets.utils",
        "check_md5",
        "downloads.trusting_own",
        "torchvision: torchvision/datasets/utils.py",
        late=True,
    ),
    Patch("torch.hub", "load_state_dict_from_url", "weights.loaded", "torch/hub.py"),
    Patch("torch.utils.model_zoo", "load_url", "weights.loaded", "torch/utils/model_zoo.py", late=True),
    Patch(
        "timm.models._builder", "load_pretrained", "weights.kept_of_timm", "timm: timm/models/_builder.py", late=True
    ),
)

_RANKS = (
    *_each(_DISTRIBUTED, "TCPStore FileStore", "rank.store", "torch/distributed/__init__.py"),
    *_each("torch.distributed.rendezvous", "TCPStore FileStore", "rank.store", "torch/distributed/rendezvous.py"),
    *(
        Patch(owner, name, by, _C10D_SOURCE)
        for owner in (_C10D, _DISTRIBUTED)
        for name, by in (
            ("ProcessGroupGloo", "rank.gloo"),
            ("monitored_barrier", "rank.monitored_barrier"),
            ("destroy_process_group", "rank.remembered"),
            ("batch_isend_irecv", "peers.told_as_one"),
            *((name, "peers.objects") for name in _OBJECTS.split()),
        )
    ),
    Patch(
        "torch.optim.optimizer",
        "register_optimizer_step_post_hook",
        "rank.let_watchdog_pass",
        "torch/optim/optimizer.py",
    ),
    Patch("torch.nn.parallel:DistributedDataParallel", "__init__", "alive.watched", "torch/nn/parallel/distributed.py"),
    *_each(_C10D, "_rank_not_in_group _get_default_group _get_process_group_name", "peers", _C10D_SOURCE),
    Patch(_GROUP, "send", "peers.telling", _INIT_SOURCE),
    Patch(_GROUP, "recv", "peers.told", _INIT_SOURCE),
    Patch(_GROUP, "broadcast", "peers.telling_all", _INIT_SOURCE),
    *_each(_GROUP, _COLLECTIVES, "collectives.among_alike", _INIT_SOURCE),
    Patch(
        "torch.distributed.launcher.api",
        "launch_agent",
        "launch.launch_agent",
        "torch/distributed/launcher/api.py",
        late=True,
    ),
    *_each(
        "torch.multiprocessing.spawn", "start_processes", "launch.start_processes", "torch/multiprocessing/spawn.py"
    ),
    *_each("torch.multiprocessing", "start_processes", "launch.start_processes", "torch/multiprocessing/spawn.py"),
    Patch(
        "torch.distributed.checkpoint.default_planner",
        "_validate_global_plan",
        "checkpoints.always_valid",
        "torch/distributed/checkpoint/default_planner.py",
        late=True,
    ),
    Patch(
        "torch.distributed.checkpoint.default_planner",
        "dedup_save_plans",
        "checkpoints.to_lowest_rank",
        "torch/distributed/checkpoint/_dedup_save_plans.py",
        late=True,
    ),
    Patch(
        "torch.distributed.fsdp._optim_utils",
        "_map_param_key_to_optim_keys",
        "checkpoints.with_all_keys",
        "torch/distributed/fsdp/_optim_utils.py",
        late=True,
    ),
    Patch(
        "torch.distributed.fsdp._optim_utils",
        "_allgather_state_info",
        "checkpoints.of_all_ranks",
        "torch/distributed/fsdp/_optim_utils.py",
        late=True,
    ),
)

_VALUES = (
    *(
        Patch(owner, name, "values", source, VALUES)
        for owner, name, source in (
            ("torch:_C", "_after_ADInplaceOrView_keyset", "torch/csrc/utils/python_dispatch.cpp"),
            ("torch:_C", "_after_autograd_keyset", "torch/csrc/utils/python_dispatch.cpp"),
            ("torch:_C", "_dispatch_dump", "torch/csrc/utils/python_dispatch.cpp"),
            ("torch:_C", "_len_torch_dispatch_stack", "torch/csrc/autograd/init.cpp"),
            ("torch:_C", "_current_autograd_node", "torch/csrc/autograd/init.cpp"),
            ("torch:_C", "_InferenceMode", "torch/csrc/autograd/init.cpp"),
            ("torch:_C._functorch", "is_functorch_wrapped_tensor", "torch/csrc/functorch/init.cpp"),
            ("torch.autograd.graph", "increment_version", "torch/autograd/graph.py"),
            ("torch.multiprocessing.reductions", "StorageWeakRef", "torch/multiprocessing/reductions.py"),
            ("torch.utils._device", "_device_constructors", "torch/utils/_device.py"),
            ("torch.jit._builtins", "_builtin_table", "torch/jit/_builtins.py"),
            ("torch.nn:Module", "_call_impl", _MODULE_SOURCE),
        )
    ),
    Patch("torch._tensor_str", "_str", "values.printed", "torch/_tensor_str.py", VALUES),
    Patch("torch:inference_mode", "__enter__", "values.entered", "torch/autograd/grad_mode.py", VALUES),
    Patch("torch", "set_autocast_cache_enabled", "values.cache_switched", "torch/csrc/autograd/init.cpp", VALUES),
    Patch("torch", "is_autocast_cache_enabled", "values.cache_is_on", "torch/csrc/autograd/init.cpp", VALUES),
    *_each("torch", _HOST_FACTORIES, "values.factory", "torch/_C/_VariableFunctions.pyi", doubt=VALUES),
    *_each(
        "torch:Tensor", "new_zeros new_ones new_full new_tensor", "values.factory", "torch/_tensor.py", doubt=VALUES
    ),
    *_each("torch", "randint randperm randint_like", "values.draw", "torch/_C/_VariableFunctions.pyi", doubt=VALUES),
    *_each("torch.storage:_StorageBase", "to cuda", "values.loaded", "torch/storage.py", doubt=VALUES),
    *(
        Patch(module, f"_{each}_increment_nesting", "values.transformed", "torch/csrc/functorch/init.cpp", VALUES)
        for module in ("torch._C._functorch", "torch._functorch.eager_transforms")
        for each in ("grad", "jvp")
    ),
)

DEVICE = (
    Patch("torch.cuda", "_lazy_call", "engine.begun_with_cuda", "torch/cuda/__init__.py", ESSENTIAL),
    *_each(_MEMORY, "_snapshot _record_memory_history", "engine", _MEMORY_SOURCE, doubt=ESSENTIAL),
    Patch("torch:_C", "_cuda_memoryStats", "served", "torch/csrc/cuda/Module.cpp", ESSENTIAL),
    *_BOTH,
    Patch("torch.optim:Optimizer", "__init__", "alive.watched", "torch/optim/optimizer.py"),
    Patch("torch:_C", "_cuda_resetPeakMemoryStats", "served.around_reset", "torch/csrc/cuda/Module.cpp"),
    Patch("torch:_C", "_cuda_resetAccumulatedMemoryStats", "served.around_reset", "torch/csrc/cuda/Module.cpp"),
    Patch(
        "torch:_C",
        "_accelerator_resetPeakStats",
        "served.around_reset",
        "torch/csrc/DeviceAccelerator.cpp",
        since="2.9",
    ),
    Patch(
        "torch:_C",
        "_accelerator_resetAccumulatedStats",
        "served.around_reset",
        "torch/csrc/DeviceAccelerator.cpp",
        since="2.9",
    ),
    Patch(_MEMORY, "set_per_process_memory_fraction", "limits.set_by_job", _MEMORY_SOURCE),
    Patch(_MEMORY, "_set_allocator_settings", "limits.set_by_job", _MEMORY_SOURCE),
    Patch("torch.cuda", "set_per_process_memory_fraction", "limits.set_by_job", _MEMORY_SOURCE),
    Patch("torch.utils.data.dataloader:DataLoader", "_get_iterator", "course.begun", _DATA_SOURCE),
    Patch("torch.utils.data.dataloader:_BaseDataLoaderIter", "__next__", "course.given", _DATA_SOURCE),
    Patch("torch.nn:Module", "train", "course.trained", _MODULE_SOURCE),
    Patch("torch", "save", "course.saved", "torch/serialization.py"),
    *_RANKS,
    *_VALUES,
    Patch("torch.nn:Module", "_call_impl", "reads", _MODULE_SOURCE),
    Patch("triton.backends", "backends", "triton.backends", "triton: python/triton/backends/__init__.py", late=True),
    Patch("torch:_TorchCompileInductorWrapper", "__call__", "triton.eager", "torch/__init__.py"),
    Patch("torch:Tensor", "record_stream", "streams.noted", "torch/_tensor.py"),
    Patch(
        "torch.cuda._gpu_trace",
        "register_callback_for_memory_allocation",
        "sites",
        "torch/cuda/_gpu_trace.py",
        SITES,
    ),
    Patch("torch:_C", "_activate_gpu_trace", "sites", "torch/csrc/Module.cpp", SITES),
    Patch("torch:_C", "_current_autograd_node", "sites", "torch/csrc/autograd/init.cpp", SITES),
    Patch("torch:_C._autograd", "_get_sequence_nr", "sites", "torch/csrc/autograd/init.cpp", SITES),
    Patch("torch.nn:Module", "_wrapped_call_impl", "sites", _MODULE_SOURCE, SITES),
)

_SAMPLER, _SAMPLER_SOURCE = "torch.utils.data.sampler:BatchSampler", "torch/utils/data/sampler.py"
ADVICE = {
    "batch": (
        Patch(_SAMPLER, "__init__", "advice.halved", _SAMPLER_SOURCE),
        Patch(_SAMPLER, "__iter__", "advice.noted", _SAMPLER_SOURCE),
    ),
    "bf16": (Patch("torch.nn:Module", "__call__", "advice.in_bf16", _MODULE_SOURCE),),
    "checkpointing": (Patch("torch.nn:Module", "__call__", "advice.with_checkpointing", _MODULE_SOURCE),),
}
"""What is hooked in beside for each change that a dry run asks for (XMEM_ADVICE)."""

_DONE = """
    init _lazy_init set_device synchronize empty_cache ipc_collect manual_seed manual_seed_all seed seed_all
    reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction set_rng_state
    set_rng_state_all set_stream
"""
_ASKED = """
    is_available is_initialized device_count current_device get_device_name get_device_capability
    get_device_properties get_arch_list mem_get_info is_bf16_supported is_current_stream_capturing
    can_device_access_peer get_rng_state get_rng_state_all memory_stats memory_summary
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization
"""
_OF_MEMORY = """
    _lazy_init empty_cache reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved is_initialized mem_get_info memory_stats
    memory_summary
"""
_FUNCTIONAL, _FUNCTIONAL_SOURCE = "torch.nn.functional", "torch/nn/functional.py"
_ACCELERATOR, _ACCELERATOR_SOURCE = "torch.accelerator", "torch/accelerator/__init__.py"

CPU = (
    *_each("torch.cuda", _DONE + _ASKED, "gpu.answer", "torch/cuda/__init__.py"),
    *_each(_MEMORY, _OF_MEMORY, "gpu.answer", _MEMORY_SOURCE),
    *_each(
        "torch.cuda",
        "current_stream default_stream stream Stream Event device device_of",
        "gpu.idle",
        "torch/cuda/__init__.py",
    ),
    Patch("torch.version", "cuda", "gpu.version", "torch/version.py"),
    Patch("torch:Tensor", "pin_memory", "gpu.pinned", "torch/_tensor.py"),
    Patch("torch:Tensor", "is_pinned", "gpu.is_pinned", "torch/_tensor.py"),
    *_each(
        _ACCELERATOR,
        "is_available current_accelerator device_count current_device_idx set_device_idx synchronize",
        "gpu.answer",
        _ACCELERATOR_SOURCE,
        since="2.6",
    ),
    *_each(_ACCELERATOR, "current_device_index set_device_index", "gpu.answer", _ACCELERATOR_SOURCE, since="2.8"),
    Patch(_ACCELERATOR, "current_stream", "gpu.idle", _ACCELERATOR_SOURCE, since="2.6"),
    Patch("torch", "Generator", "redirect.generator", "torch/csrc/Generator.cpp"),
    Patch("torch:autocast", "__init__", "redirect.autocast", "torch/amp/autocast_mode.py"),
    *_each(
        "torch", "is_autocast_enabled get_autocast_dtype", "redirect.asked_of_autocast", "torch/csrc/autograd/init.cpp"
    ),
    Patch("torch", "get_autocast_gpu_dtype", "redirect.gpu_type", "torch/csrc/autograd/init.cpp"),
    Patch("torch.amp.grad_scaler:GradScaler", "__init__", "redirect.scaler", "torch/amp/grad_scaler.py"),
    Patch("torch", "load", "redirect.load", "torch/serialization.py"),
    *_each("torch:_C", "_get_mkldnn_enabled _set_mkldnn_enabled", "lstm", "torch/csrc/Module.cpp"),
    Patch("torch.autograd", "_disable_profiler", "engine", "torch/csrc/autograd/init.cpp", ESSENTIAL),
    Patch("torch.nn:Parameter", "__new__", "redirect.parameter", "torch/nn/parameter.py"),
    Patch(
        "torch.utils._device:DeviceContext", "__torch_function__", "redirect.device_context", "torch/utils/_device.py"
    ),
    Patch(_FUNCTIONAL, "dropout", "ways.dropout", _FUNCTIONAL_SOURCE),
    Patch(_FUNCTIONAL, "scaled_dot_product_attention", "ways.attention", _FUNCTIONAL_SOURCE),
    Patch(_FUNCTIONAL, "cross_entropy", "ways.cross_entropy", _FUNCTIONAL_SOURCE),
    *(
        Patch(owner, "_get_foreach_kernels_supported_devices", "ways.foreach", "torch/utils/_foreach_utils.py")
        for owner in ("torch.utils._foreach_utils", "torch.optim.optimizer")
    ),
    Patch("torch.backends.cudnn", "is_acceptable", "ways.without_cudnn", "torch/backends/cudnn/__init__.py"),
    *_BOTH,
    Patch("torch.nn.modules.module", "register_module_forward_pre_hook", "engine.module_entered", _MODULE_SOURCE),
    Patch("torch.nn.modules.module", "register_module_forward_hook", "engine.module_left", _MODULE_SOURCE),
)
