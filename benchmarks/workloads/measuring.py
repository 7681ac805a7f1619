"""What does one process really take of its GPU? Torch's peaks and history, and what the device and
NVML say.

For Python 3.9, with torch only and what `xmem-slurm site calibrate` measures with. All sizes are
bytes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "xmem_slurm" / "probe"))

from _xmem.outside_allocator import device_used, gpu, process_bytes, versions

AfterStep = Callable[[], None]

SCHEMA_VERSION = 1
"""Of the trace format that `xmem_slurm/trace.py` describes."""


class Measurement:
    """Begun before the first allocation, finished after the last step. `cap` limits torch's
    allocator.
    """

    def __init__(self, cap: int | None = None) -> None:
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()
        self._used_before = device_used()
        self._process_before = process_bytes()
        if cap is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap / torch.cuda.mem_get_info()[1]))
        record = torch.cuda.memory._record_memory_history  # noqa: SLF001 - no public way
        record(max_entries=sys.maxsize, context="alloc", stacks="python")
        self._steps: list[list[int]] = []

    def after_step(self) -> None:
        """Note the peaks so far."""
        self._steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])

    def finish(self) -> dict[str, Any]:
        """Return the measurements and the allocator's history."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        used, process, reserved = device_used(), process_bytes(), torch.cuda.memory_reserved()
        history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]  # noqa: SLF001
        run = {
            "gpu": gpu(),
            "versions": _versions(),
            "settings": _settings(),
            "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
            "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
            "peak_requested_bytes": stats["requested_bytes.all.peak"],
            "retries": stats["num_alloc_retries"],
            "steps": self._steps,
            "outside_before_bytes": self._used_before,
            "reserved_after_bytes": reserved,
            "outside_after_bytes": used - reserved,
            "nvml_process_before_bytes": self._process_before,
            "nvml_process_after_bytes": process,
        }
        return {"run": run, "trace": _trace(history, stats), "frames": _frames(history)}


def _versions() -> dict[str, Any]:
    found = {**versions(), "python": sys.version.split()[0]}
    for package in ("torchvision", "transformers", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _settings() -> dict[str, Any]:
    names = (
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUDA_MODULE_LOADING",
        "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE",
    )
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
        "gpu": gpu(),
        "events": {
            column: [event.get(key, 0) for event in history] for column, key in columns.items()
        },
        "marks": [],
        "tags": [],
        "recorded": {name: stats[f"{name}.all.peak"] for name in names},
        "doubts": [],
    }


def _frames(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the innermost Python frame of every allocation: `names`, and for each allocation the
    number of its name.

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
