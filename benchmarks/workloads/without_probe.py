"""Has torch run without the probe, on the stand-in CUDA libraries in the folder STAND_INS, if that
names one.

They are mapped first, as the probe does: whoever wants that imports this before torch.
"""

import ctypes
import os
from pathlib import Path


def _map(folder: Path) -> list[ctypes.CDLL]:
    """Map the libraries, the runtime before those that need it."""
    paths = sorted(folder.glob("*.so*"), key=lambda path: ("libcudart" not in path.name, path))
    return [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in paths]


MAPPED = _map(Path(os.environ["STAND_INS"])) if "STAND_INS" in os.environ else []
