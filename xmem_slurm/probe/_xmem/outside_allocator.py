"""What does a process hold of its GPU beside torch's allocator? The CUDA context, loaded kernels,
NCCL's buffers.

Run on a GPU node, nothing else on the GPU, it prints one JSON object: `xmem-slurm site calibrate`
has Slurm do that. Needs torch alone; reads NVML through its own library, which every driver brings.
Sizes are bytes.

Kernels are loaded when they are first used (CUDA_MODULE_LOADING=LAZY), so a few training steps are
made of what most jobs use: convolutions, matrix products, attention, norms, losses, two optimizers,
in fp32 and bf16. A job that uses others, or compiles its own, holds more.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

_MOST_PROCESSES = 64
"""Entries of the list that NVML fills; a node's GPU has fewer processes."""
_NOT_AVAILABLE = 2**64 - 1
"""What NVML says of a process whose memory the driver does not tell (nvml.h:
NVML_VALUE_NOT_AVAILABLE)."""
_EXCHANGED_BYTES = 64 << 20
"""NCCL takes the buffers of a kind of operation when it is first used; a gradient bucket of DDP is
25 MiB."""


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of nvml.h, CUDA 12 and 13."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def device_used() -> int:
    """Return what all processes hold of the current GPU, as CUDA says."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def process_bytes() -> int | None:
    """Return what NVML says that this process holds of its GPU.

    None where it does not say: no NVML, a container with process numbers of its own, a driver that
    keeps no account.
    """
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        handle, count = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES)
        processes = (_ProcessInfo * _MOST_PROCESSES)()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(
            f"GPU-{uuid}".encode(), ctypes.byref(handle)
        ):
            return None
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes):
            return None
        for process in processes[: count.value]:
            if process.pid == os.getpid() and process.used != _NOT_AVAILABLE:
                return process.used
    return None


def gpu() -> dict[str, Any]:
    """Return the current GPU as CUDA shows it."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "total_bytes": properties.total_memory,
    }


def versions() -> dict[str, Any]:
    """Return the versions of torch, CUDA, cuDNN and the driver, as far as they can be had."""
    releases = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    with contextlib.suppress(OSError):
        releases["driver"] = Path("/sys/module/nvidia/version").read_text(encoding="utf-8").strip()
    return releases


def measure() -> dict[str, Any]:
    """Return what this process holds outside the allocator, before its first allocation and after
    training steps.

    `device_…` is of all processes on the GPU, `process_…` of this one, None where NVML does not
    say.
    """
    torch.cuda.init()
    torch.cuda.current_stream().synchronize()
    before = {"device_before": device_used(), "process_before": process_bytes()}
    for precision in (torch.float32, torch.bfloat16):
        _train(precision)
    torch.cuda.synchronize()
    reserved, process = torch.cuda.memory_reserved(), process_bytes()
    after = {
        "device_after": device_used() - reserved,
        "process_after": None if process is None else process - reserved,
    }
    return {"gpu": gpu(), "versions": versions(), **before, **after}


def _train(precision: torch.dtype) -> None:
    """Make a step with each of two optimizers, of what most jobs use."""
    layers = (
        torch.nn.Conv2d(3, 64, 3, padding=1),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(64, 64, 1),
        torch.nn.GELU(),
        torch.nn.Flatten(2),
        torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 256, 1000),
    )
    model = torch.nn.Sequential(*layers).cuda()
    optimizers = [
        torch.optim.AdamW(model.parameters()),
        torch.optim.SGD(model.parameters(), 0.01, fused=True),
    ]
    for optimizer in optimizers:
        with torch.autocast("cuda", dtype=precision, enabled=precision != torch.float32):
            outputs = model(torch.randn(16, 3, 32, 32, device="cuda"))
            loss = torch.nn.functional.cross_entropy(
                outputs, torch.randint(0, 1000, (16,), device="cuda")
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def exchange(rank: int, ranks: int, folder: str) -> int:
    """Return what NCCL took of the GPU `rank` when a group of `ranks` processes on one node added
    up a tensor.
    """
    torch.cuda.set_device(rank)
    tensor = torch.zeros(_EXCHANGED_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    before = device_used() - torch.cuda.memory_reserved()
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    torch.distributed.all_reduce(tensor)
    torch.cuda.synchronize()
    used = device_used() - torch.cuda.memory_reserved() - before
    torch.distributed.destroy_process_group()
    return used


def nccl_bytes(ranks: int) -> int | None:
    """Return the most that NCCL took of any of `ranks` GPUs; None where a rank failed. No CUDA
    before this.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                _as_rank(rank, ranks, folder)
            children.append(child)
        ended = [os.waitpid(child, 0)[1] for child in children]
        by_rank = [int(path.read_text()) for path in Path(folder).glob("rank*")]
        return max(by_rank) if not any(ended) and by_rank else None


def _as_rank(rank: int, ranks: int, folder: str) -> None:
    """Write what NCCL took, and end this process, whatever happens."""
    try:
        Path(folder, f"rank{rank}").write_text(str(exchange(rank, ranks, folder)))
    except BaseException as error:  # a child must never go on with its parent's work
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Print the measurements; NCCL's too where Slurm gave this job several GPUs."""
    ranks = len(list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    nccl = nccl_bytes(ranks) if ranks > 1 else None
    print(json.dumps({**measure(), "nccl_ranks": ranks, "nccl": nccl}))  # noqa: T201


if __name__ == "__main__":
    main()
