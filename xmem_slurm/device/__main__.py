"""`python -m xmem_slurm.device TORCH_DIR`: print the folder with the stand-in CUDA libraries,
building them if needed.

The probe calls it, with the wrapper's Python, from inside the job's Python, and names the job's own
cuDNN, if there is one, in XMEM_DEVICE_CUDNN. One line on stderr and exit 1 on failure.
"""

import os
import sys
from pathlib import Path

from xmem_slurm.device.builder import build
from xmem_slurm.errors import DeviceBuildError


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m xmem_slurm.device TORCH_DIR\n")
        return 2
    cudnn = os.environ.get("XMEM_DEVICE_CUDNN")
    try:
        sys.stdout.write(f"{build(Path(arguments[0]), cudnn=Path(cudnn) if cudnn else None)}\n")
    except DeviceBuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
