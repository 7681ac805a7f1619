"""What does NCCL take of a GPU beside the CUDA context? Known where it was measured: kind of GPU, ranks, torch.

`python -m benchmarks.nccl` writes site-config/nccl.toml from measurements. They are of one communicator of all ranks on
one node, after its first collective. NCCL 2.22 and newer connects what other collectives use when they are first called
(NCCL_RUNTIME_CONNECT), which is not in it: the margin has to cover that.
"""

import functools
import re
import tomllib
from dataclasses import dataclass

from xmem_slurm import resources
from xmem_slurm.doubts import Doubt
from xmem_slurm.site.schema import Gpu
from xmem_slurm.trace import Trace

FILE = "nccl.toml"


@dataclass(frozen=True)
class MeasuredNccl:
    """The most that NCCL took on a `gpu` (cudaDeviceProp.name), with torch generations `since` to `until`."""

    gpu: str
    ranks: int
    since: tuple[int, int]
    until: tuple[int, int]
    bytes: int


@functools.cache
def measured() -> list[MeasuredNccl]:
    """Read what was measured, from site-config/nccl.toml: older generations first."""
    entries = tomllib.loads((resources.tree("site-config") / FILE).read_text(encoding="utf-8"))["measured"]
    return [
        MeasuredNccl(each["gpu"], each["ranks"], generation(each["since"]), generation(each["until"]), each["bytes"])
        for each in entries
    ]


def generation(torch_version: str) -> tuple[int, int]:
    """Return (major, minor) of a release. A nightly counts as the one before: it may still have that one's NCCL."""
    major, minor = map(int, re.findall(r"\d+", torch_version)[:2])
    return major, minor - (".dev" in torch_version)


def taken(trace: Trace, gpu: Gpu) -> tuple[int, bool]:
    """Return the bytes that NCCL takes, as far as they are known, and whether they are.

    Of a site's own figure (two ranks) and those of this kind of GPU with as many ranks or the next more, the larger.
    """
    communicators = sum(noted.count for noted in trace.doubts if noted.doubt is Doubt.NCCL)
    of_kind = [each for each in measured() if each.gpu == gpu.cuda_name]
    if not communicators or not of_kind:
        return (gpu.nccl_bytes or 0) if communicators else 0, not communicators
    now, ranks = generation(trace.torch_version), trace.world_size
    enough = min((each.ranks for each in of_kind), key=lambda count: (count < ranks, abs(count - ranks)))
    by_age = [each for each in of_kind if each.ranks == enough]
    nearest = next((each for each in by_age if now <= each.until), by_age[-1])
    like_it = (enough, 1, 1) == (ranks, trace.nodes, communicators)
    return max(nearest.bytes, gpu.nccl_bytes or 0), like_it and nearest.since <= now <= nearest.until
