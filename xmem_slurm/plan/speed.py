"""Which of several ways to train is faster? A roofline that only ranks: its seconds are never shown.

FLOPs, bytes, launches and collectives of one optimizer step are counted in a dry run (`work_of`); what a GPU and its
links can do at most is data (`hardware`). No constant is fitted to measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.trace import Trace

TIE = 0.10
"""Differences below it are ties: the roofline does not see that much."""
MOST_NODES = 8
"""Beyond it what is not counted decides: stragglers, the network's topology (74.9 % of pairs in the right order)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One or many alike, of one optimizer step, of one rank.

    `kind` is NCCL's: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send".
    `bytes` are of the whole buffer: of an all_gather or reduce_scatter the gathered one. Its group has `ranks` ranks
    on `nodes` nodes. `overlappable`: it runs beside computation (DDP's buckets, FSDP's prefetching).
    """

    kind: str
    bytes: int
    ranks: int
    nodes: int
    count: int = 1
    overlappable: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in one optimizer step, all of its micro batches together.

    `flops` by precision: "bf16", "fp16", "tf32", "fp32", "fp64", "fp8". `bytes` are those touched in GPU memory,
    `launches` kernels. `host_seconds` is a floor, 0 where it is not known; `offloaded_bytes` go over PCIe, both ways.
    """

    flops: Mapping[str, float]
    bytes: float
    launches: int
    collectives: tuple[Collective, ...]
    host_seconds: float = 0.0
    offloaded_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one GPU of a site and its links can do at most: FLOP/s by precision, bytes/s. NVLink of 0: PCIe alone.

    NVLink, PCIe: one GPU, one direction. The network: all of a node's adapters together, one direction.
    """

    peak_flops: Mapping[str, float]
    memory_bytes_per_second: float
    nvlink_bytes_per_second: float
    pcie_bytes_per_second: float
    network_bytes_per_second: float
    gpus_per_node: int


def hardware(option: str, gpu: Gpu, site: Site | None = None) -> Hardware | None:  # noqa: ARG001 - body follows
    """Return what an option's GPU and its links can do; None where the catalogue has no speed of it."""
    return None


def work_of(trace: Trace) -> Work | None:  # noqa: ARG001 - body follows
    """Return what was counted in a dry run whose order had `count_work`; None where nothing was."""
    return None


def step_seconds(work: Work, hardware: Hardware) -> float:
    """Return the seconds of one optimizer step at the limits of the hardware. Only ever for ranking."""
    compute = sum(flops / hardware.peak_flops[precision] for precision, flops in work.flops.items())
    return max(compute, work.bytes / hardware.memory_bytes_per_second, work.host_seconds)


def same_class(a: float, b: float) -> bool:
    """Whether two times are a tie."""
    return abs(a - b) < TIE * min(a, b)


def cannot_rank(nodes: int, pipelines: bool) -> str:
    """Return why ways that need so many nodes, or pipelines, are not ranked by speed; "" where they are."""
    if pipelines:
        return "pipelines are not ranked by speed"
    return f"more than {MOST_NODES} nodes are not ranked by speed" if nodes > MOST_NODES else ""
