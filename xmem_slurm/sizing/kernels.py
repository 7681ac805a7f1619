"""Has a torch kernels for a GPU? By what it was compiled for, as `torch.cuda.get_arch_list()` has
it.

`sm_80` is machine code: it runs on GPUs of the same major number and the same minor or a later one.
`compute_90` is PTX, which the driver compiles for that compute capability and every later one.
`sm_90a` is for 9.0 alone, and `sm_100f` for its family (CUDA C++ Programming Guide, "Binary
Compatibility", "PTX Compatibility", "Family-Specific Features").
"""

import re
from collections.abc import Sequence

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def run_on(arch_list: Sequence[str], capability: str) -> bool:
    """Whether one of these runs on GPUs of this compute capability ("7.0"); an empty list is one
    that is not known.
    """
    major, minor = map(int, capability.split("."))
    matches = [match for match in map(_ARCHITECTURE.fullmatch, arch_list) if match is not None]
    return not matches or any(
        _runs(match[1], int(match[2]), int(match[3]), match[4], (major, minor)) for match in matches
    )


def _runs(kind: str, major: int, minor: int, only: str, on: tuple[int, int]) -> bool:
    if only == "a":
        return (major, minor) == on
    if kind == "compute" and not only:
        return (major, minor) <= on
    return major == on[0] and minor <= on[1]
