"""What both engines write of the process that they watch, and how: a file is whole or not there."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _xmem.annotations import Environ
    from _xmem.process.stand_ins import TorchBuild


def described(
    environ: Environ,
    build: TorchBuild,
    settings: str | None,
    rank: int,
    world_size: int,
) -> dict[str, Any]:
    """Return the fields of a trace that say which process it is of (`Process` in
    xmem_slurm/trace.py).

    `environ` holds the XMEM_* variables of the dry run; `build` is what
    `process.stand_ins.torch_build` gave.
    """
    return {
        "argv": list(
            getattr(sys, "orig_argv", None) or [sys.executable, *getattr(sys, "argv", [])]
        ),
        "python": sys.executable or "",
        "rank": rank,
        "world_size": world_size,
        "component": int(environ.get("XMEM_COMPONENT", "0")),
        "nodes": max(map(_count, ("GROUP_WORLD_SIZE", "SLURM_NNODES"))),
        "torch_version": build.torch,
        "cuda_version": build.cuda,
        "arch_list": _arch_list(),
        "allocator_settings": settings,
        "gpu": {
            "name": environ["XMEM_DEVICE_NAME"],
            "capability": environ["XMEM_DEVICE_CAPABILITY"],
            "multiprocessors": int(environ["XMEM_DEVICE_MULTIPROCESSORS"]),
            "total_bytes": int(environ["XMEM_DEVICE_TOTAL_BYTES"]),
        },
    }


def _count(name: str) -> int:
    """Return the number that a variable holds; 1 where the job has put something else there."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 1


def _arch_list() -> list[str]:
    """Return what torch has kernels for, as `torch.cuda.get_arch_list` says it once CUDA is in use;
    [] before.

    To ask earlier would have torch refuse CUDA to whatever is forked after (poison_fork,
    torch/csrc/cuda/Module.cpp).
    """
    torch = sys.modules.get("torch")
    in_use = getattr(getattr(torch, "cuda", None), "is_initialized", bool)()
    flags = getattr(torch._C, "_cuda_getArchFlags", None) if torch is not None and in_use else None
    return ((flags and flags()) or "").split()


def write(file: str, content: dict[str, Any]) -> None:
    """Write `content` as JSON (gzip), renamed into place. A full disk must not end the job; what
    was there stays.
    """
    packed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), compresslevel=1)
    part = "%s.%d.part" % (file, time.monotonic_ns())
    with contextlib.suppress(OSError):
        with open(part, "wb") as whole:
            whole.write(packed)
        os.replace(part, file)


def leaves(values: Any) -> Iterator[Any]:
    """Yield what is no list, tuple or dict of `values`, at any depth: optimizers keep their state
    in all of them.
    """
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (dict, list, tuple)):
            yield from leaves(value)
        else:
            yield value
