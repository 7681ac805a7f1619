"""Which entry of the GPU catalogue is the card that a benchmark's data name?"""

import functools

from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu

_LIKE_MEMORY = 0.05
"""The memory that CUDA shows of one model differs by less than this between drivers, and with
ECC."""


def named(card: str, total_bytes: int | None = None) -> tuple[str, Gpu] | None:
    """Return the catalogue's name and entry for a card as CUDA names it, with this much memory
    (bytes), or None.

    Without the memory the first of that name.
    """
    for name, gpu in load_catalogue().items():
        if gpu.cuda_name == card and (
            total_bytes is None or abs(gpu.total_bytes / total_bytes - 1) < _LIKE_MEMORY
        ):
            return name, gpu
    return None


@functools.cache
def capability(card: str, total_bytes: int) -> str:
    """Return the compute capability of that card, "" if the catalogue does not have it."""
    found = named(card, total_bytes)
    return found[1].capability if found is not None else ""
