"""Which entry of the GPU catalogue is the card that a benchmark's data name?"""

import re

from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu

_LIKE_MEMORY = 0.05
"""The memory that CUDA shows of one model differs by less than this between drivers, and with ECC."""

_NOT_TELLING = re.compile(r"hbm\d+e?")
"""A word of the driver's names that the catalogue leaves out: the kind of memory."""


def named(card: str, total_bytes: int) -> tuple[str, Gpu] | None:
    """Return the catalogue's name and entry for a card as its driver names it, with this much memory (bytes).

    Every word of the name must stand in the catalogue's description: "NVIDIA H200" is "NVIDIA H200 SXM 141 GB". Of
    several the one with the fewest words more. None if there is none.
    """
    wanted = _words(card)
    found = [
        (len(_words(gpu.description)), name, gpu)
        for name, gpu in load_catalogue().items()
        if gpu.mig_of is None
        and wanted <= _words(gpu.description)
        and abs(gpu.total_bytes / total_bytes - 1) < _LIKE_MEMORY
    ]
    return min(found, key=lambda entry: entry[:2])[1:] if found else None


def _words(name: str) -> set[str]:
    spaced = re.sub(r"(\d+)\s*gb", r"\1 gb", name.lower())
    return {word for word in re.findall(r"[a-z0-9]+", spaced) if not _NOT_TELLING.fullmatch(word)}
