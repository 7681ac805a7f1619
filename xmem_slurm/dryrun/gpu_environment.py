"""The environment in which a job's Python finds stand-in GPUs and the probe that watches it."""

import json
import os
import sys
from pathlib import Path

from xmem_slurm.device import preload
from xmem_slurm.errors import DeviceBuildError
from xmem_slurm.site.schema import Gpu

_PROBE = Path(__file__).resolve().parents[1] / "probe"


def environment(gpu: Gpu, count: int, traces: Path, python_path: str | None) -> dict[str, str]:
    """Return the variables that show a job `count` GPUs of this kind and leave traces in the folder
    `traces`.

    The names are known to the probe, to the stand-in libraries (`device/src/cudart/device.c`) and
    to what leads a Python to the probe (`device/preload.py`).
    """
    return {
        "PYTHONPATH": os.pathsep.join([str(_PROBE), *filter(None, [python_path])]),
        "XMEM_PROBE": str(_PROBE),
        "XMEM_TRACE_DIR": str(traces),
        "XMEM_DEVICE_BUILD": json.dumps([sys.executable, "-m", "xmem_slurm.device"]),
        "XMEM_DEVICE_NAME": gpu.cuda_name,
        "XMEM_DEVICE_CAPABILITY": gpu.capability,
        "XMEM_DEVICE_MULTIPROCESSORS": str(gpu.multiprocessors),
        "XMEM_DEVICE_TOTAL_BYTES": str(gpu.total_bytes),
        "XMEM_DEVICE_CONTEXT_BYTES": str(gpu.context_bytes),
        "XMEM_DEVICE_COUNT": str(count),
        "XMEM_DEVICE_EVENTS": "queued",
    }


def preloaded(theirs: str | None) -> dict[str, str]:
    """Return LD_PRELOAD with what leads every Python to the probe, after the job's own; nothing if
    it cannot be built.

    Without it (no compiler here, and stand-ins that were built elsewhere) PYTHONPATH alone leads
    there.
    """
    try:
        library = str(preload.build())
    except DeviceBuildError:
        return {}
    return {"LD_PRELOAD": ":".join(filter(None, [theirs, library]))}
