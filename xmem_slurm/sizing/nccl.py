"""What does NCCL take of a GPU besides the CUDA context? Known where it was measured: kind of GPU,
ranks, torch.

`python -m benchmarks.nccl` writes site-config/nccl.toml from measurements. They are of one
communicator of all ranks on one node, after its first collective.

Note [NCCL's bound]: a communicator's buffers are one set for each channel and each rank that it is
connected to by one of NCCL's algorithms. Fewer ranks have fewer connections; GPUs have the more
channels the more NVLinks they have, and of all up to compute capability 9.0 the H100 has the most.
NCCL before 2.22 connected all algorithms when it began (later ones do so when each is first used,
NCCL_RUNTIME_CONNECT): that is the most there was. So where a run is not like those measured, the
most that was measured of as many ranks or more is a bound for GPUs with NVLink. There is none for
several nodes or communicators, more ranks, and newer GPUs; and for those that PCIe connects, which
have a few channels only, it would be many times what they take.
"""

import functools
import re
import tomllib
from dataclasses import dataclass

from xmem_slurm import resources
from xmem_slurm.doubts import Doubt
from xmem_slurm.site.schema import NCCL_RANKS, Gpu
from xmem_slurm.trace import Trace

FILE = "nccl.toml"
_BOUNDED = (9, 0)
"""The last compute capability of which as much is measured as it can take."""


@dataclass(frozen=True)
class MeasuredNccl:
    """The most that NCCL took on a `gpu` (cudaDeviceProp.name), with torch generations `since` to
    `until`.
    """

    gpu: str
    ranks: int
    since: tuple[int, int]
    until: tuple[int, int]
    bytes: int


@functools.cache
def measured() -> list[MeasuredNccl]:
    """Read what was measured, from site-config/nccl.toml: older generations first."""
    entries = tomllib.loads((resources.tree("site-config") / FILE).read_text(encoding="utf-8"))[
        "measured"
    ]
    return [
        MeasuredNccl(
            entry["gpu"],
            entry["ranks"],
            generation(entry["since"]),
            generation(entry["until"]),
            entry["bytes"],
        )
        for entry in entries
    ]


def generation(torch_version: str) -> tuple[int, int]:
    """Return (major, minor) of a release. A nightly counts as the one before: it may still have
    that one's NCCL.
    """
    major, minor = map(int, re.findall(r"\d+", torch_version)[:2])
    return major, minor - (".dev" in torch_version)


def taken(trace: Trace, gpu: Gpu) -> tuple[int, bool]:
    """Return the bytes that NCCL takes at the most, and whether more is ruled out: see Note [NCCL's
    bound].

    A site's own figure, which is of two ranks, goes before all others for so many, and is the least
    for more.
    """
    communicators = sum(noted.count for noted in trace.doubts if noted.doubt is Doubt.NCCL)
    if not communicators:
        return 0, True
    release, ranks, site_bytes = generation(trace.torch_version), trace.world_size, gpu.nccl_bytes
    is_one = communicators == 1 == trace.nodes
    if site_bytes is not None and is_one and ranks <= NCCL_RANKS:
        return site_bytes, True
    enough = min(
        (row.ranks for row in measured()), key=lambda count: (count < ranks, abs(count - ranks))
    )
    as_many = [row for row in measured() if row.ranks == enough]
    of_kind = [row for row in as_many if row.gpu == gpu.cuda_name]
    of_release = [row for row in of_kind if row.since <= release <= row.until]
    if is_one and ranks <= enough and (of_release or _is_bounded(gpu)):
        return max([site_bytes or 0, *[row.bytes for row in of_release or as_many]]), True
    nearest = [row for row in of_kind if release <= row.until] or of_kind[-1:]
    return max([site_bytes or 0, *[row.bytes for row in nearest[:1]]]), False


def _is_bounded(gpu: Gpu) -> bool:
    """Whether it can take no more than those that were measured, and has links like theirs."""
    has_links = gpu.speed is not None and gpu.speed.nvlink_gb_per_second > 0
    return has_links and generation(gpu.capability) <= _BOUNDED
