"""Maps the stand-in CUDA libraries under a torch that is about to be imported, and reads what they
could not see.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ctypes import CDLL

    from _xmem.annotations import Function

_CUDA_VERSION = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


class TorchBuild(NamedTuple):
    """The versions of torch, and of the CUDA that it was built for: None is none."""

    torch: str
    cuda: str | None


def torch_build(folder: str) -> TorchBuild:
    """Return the versions of the torch in `folder`, without importing it."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        text = file.read()
    version, cuda = _TORCH_VERSION.search(text), _CUDA_VERSION.search(text)
    return TorchBuild(version.group(1) if version else "unknown", cuda.group(1) if cuda else None)


def map_stand_ins(folder: str, command: list[str]) -> CDLL:
    """Map the stand-ins for the torch in `folder` under the names that it links to; return the CUDA
    runtime's.

    The dynamic loader never looks for a library whose SONAME is mapped already, so this wins over
    torch's RPATH, and the real libraries may lie beside it. `command`, given the folder, prints
    where they are, built if need be; this Python stands for a first word that is empty.
    """
    os.environ.setdefault("XMEM_DEVICE_CUDNN", real_cudnn(folder))
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "LD_PRELOAD"
    }
    asker = command if command[0] else [os.readlink("/proc/self/exe"), "-I", "-S", *command[1:]]
    build = subprocess.run(
        [*asker, folder], env=clean, cwd="/", capture_output=True, text=True, check=False
    )
    if build.returncode:
        raise RuntimeError(
            (build.stderr.strip() or "the stand-in CUDA libraries could not be built").splitlines()[
                -1
            ]
        )
    built = build.stdout.strip()
    names = sorted(os.listdir(built), key=lambda name: ("libcudart" not in name, name))
    libraries = [
        ctypes.CDLL(os.path.join(built, name), mode=ctypes.RTLD_GLOBAL)
        for name in names
        if ".so" in name
    ]
    return libraries[0]


def real_cudnn(folder: str) -> str:
    """Return the path of the cuDNN that the torch in `folder` would load on a GPU, or "" if there
    is none.

    The stand-in libcudnn asks it, from another process, for plans and workspaces. The places and
    their order are those of torch's RPATH, torch/__init__.py (`_preload_cuda_deps`), the dynamic
    loader and conda.
    """
    beside = [os.path.dirname(folder), *sys.path]
    places = [os.path.join(place, "nvidia", "cudnn", "lib") for place in beside]
    places += [
        os.path.join(folder, "lib"),
        *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep),
    ]
    places += [os.path.join(sys.prefix, "lib")]
    paths = [os.path.join(place, "libcudnn_graph.so.9") for place in places if place]
    return next((path for path in paths if os.path.isfile(path)), "")


def place(device: int) -> str:
    """Return which GPU of the job number `device` of this process is, as CUDA_VISIBLE_DEVICES names
    it on its node.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = visible[device] if device < len(visible) and visible[device] else str(device)
    node = os.environ.get("XMEM_NODE", "0")
    return name if node == "0" else "%s:%s" % (node, name)


def doubts(runtime: CDLL) -> list[dict[str, Any]]:
    """Return what the stand-ins, by their `runtime`, could not answer so far: [{code, detail,
    count}].
    """
    return _report(runtime.xmem_device_report)


def bounds(runtime: CDLL) -> list[list[int]]:
    """Return what requests may be of on the GPU, [[bytes as asked for, bytes at the most]]."""
    return _report(runtime.xmem_bounds_report)


def mallocs_before_launch(runtime: CDLL, device: int) -> int:
    """Return how often memory was taken of this device before any kernel was launched."""
    runtime.xmem_mallocs_before_launch.restype = ctypes.c_ulonglong
    return runtime.xmem_mallocs_before_launch(device)


def work(runtime: CDLL) -> Any:
    """Return what the GPU was given to do from one optimizer step to the next (form:
    device/src/cudart/work.c).
    """
    return _report(runtime.xmem_work_report)


def _report(write: Function) -> Any:
    size = write(None, ctypes.c_size_t(0)) + (1 << 12)  # room for what is met meanwhile
    text = ctypes.create_string_buffer(size)
    write(text, ctypes.c_size_t(size))
    return json.loads(text.value.decode())
