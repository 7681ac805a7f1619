"""What does one process really take of its GPU? Torch's peaks and history, and what the device and NVML say.

For Python 3.9, with torch only. All sizes are bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

AfterStep = Callable[[], None]

SCHEMA_VERSION = 1
"""Of the trace format that `xmem_slurm/trace.py` describes."""

_MOST_PROCESSES = 64


class Measurement:
    """Begun before the first allocation, finished after the last step. `cap` limits torch's allocator."""

    def __init__(self, cap: int | None = None) -> None:
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()
        self._used_before = _device_used()
        self._process_before = process_bytes()
        if cap is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap / torch.cuda.mem_get_info()[1]))
        torch.cuda.memory._record_memory_history(max_entries=sys.maxsize, context="alloc", stacks="python")  # noqa: SLF001 - no public way
        self._steps: list[list[int]] = []

    def after_step(self) -> None:
        """Note the peaks so far."""
        self._steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])

    def finish(self) -> dict[str, Any]:
        """Return the measurements and the allocator's history."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        used = _device_used()
        history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]  # noqa: SLF001
        run = {
            "gpu": _gpu(),
            "versions": _versions(),
            "settings": _settings(),
            "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
            "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
            "peak_requested_bytes": stats["requested_bytes.all.peak"],
            "retries": stats["num_alloc_retries"],
            "steps": self._steps,
            "outside_before_bytes": self._used_before,
            "outside_after_bytes": used - torch.cuda.memory_reserved(),
            "nvml_process_before_bytes": self._process_before,
            "nvml_process_after_bytes": process_bytes(),
        }
        return {"run": run, "trace": _trace(history, stats), "frames": _frames(history)}


def process_bytes() -> int | None:
    """Return what NVML says that this process holds of its GPU; None where it does not say (no NVML, a container)."""
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        handle, count = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES)
        found = (_ProcessInfo * _MOST_PROCESSES)()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle)):
            return None
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found):
            return None
        for each in found[: count.value]:
            if each.pid == os.getpid() and each.used != _NOT_AVAILABLE:
                return each.used
    return None


_NOT_AVAILABLE = 2**64 - 1


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of nvml.h, CUDA 12 and 13."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def _device_used() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "total_bytes": properties.total_memory,
    }


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": sys.version.split()[0],
    }
    for package in ("torchvision", "transformers", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    with contextlib.suppress(OSError):
        found["driver"] = Path("/sys/module/nvidia/version").read_text(encoding="utf-8").strip()
    return found


def _settings() -> dict[str, Any]:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")
    return {
        **{name: os.environ.get(name, "") for name in names},
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def _trace(history: list[dict[str, Any]], stats: dict[str, int]) -> dict[str, Any]:
    columns = {"action": "action", "address": "addr", "size": "size", "stream": "stream"}
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    return {
        "schema_version": SCHEMA_VERSION,
        "state": "exit",
        "error": None,
        "pid": os.getpid(),
        "argv": sys.argv,
        "rank": 0,
        "world_size": 1,
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "allocator_settings": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "gpu": _gpu(),
        "events": {column: [event.get(key, 0) for event in history] for column, key in columns.items()},
        "marks": [],
        "tags": [],
        "recorded": {name: stats[f"{name}.all.peak"] for name in names},
        "doubts": [],
    }


def _frames(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the innermost Python frame of every allocation: `names`, and for each allocation the number of its name.

    What the backward pass allocates has none, or that of the call to backward().
    """
    numbers: dict[str, int] = {}
    of_allocation = []
    for event in history:
        if event["action"] == "alloc":
            frame = next(iter(event.get("frames", ())), None)
            name = "?" if frame is None else _name(frame)
            of_allocation.append(numbers.setdefault(name, len(numbers)))
    return {"names": list(numbers), "of_allocation": of_allocation}


def _name(frame: dict[str, Any]) -> str:
    return f"{'/'.join(Path(frame['filename']).parts[-2:])}:{frame['line']} {frame['name']}"
