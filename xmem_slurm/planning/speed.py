"""Which of several ways to train is faster? A roofline that only ranks: its seconds are never
shown.

What one step does is counted in a dry run (`work_of`); what a GPU and its links can do at most is
data (`hardware`). No constant is fitted to measured training: each is of a data sheet, of a
library's source, or a round number of others' measurements, and says which. Two times within 10 %
of each other are a tie.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.trace import Category, Trace
from xmem_slurm.work import Collective, CountedRow, Product, StepCounts, Work

__all__ = [
    "Collective",
    "Hardware",
    "Product",
    "Work",
    "cannot_rank",
    "hardware",
    "same_class",
    "step_seconds",
    "why_no_time",
    "work_of",
]

TIE = 0.10
"""Differences below it are ties."""
MOST_NODES = 8
"""Beyond it stragglers and the network's topology decide: the first choice may be far off
(docs/planning-speed.md)."""

PRODUCT_SHARE = 0.8
"""Of the peak of the tensor cores that the best product reaches: 80 % on H100 SXM, 86 % on A100
SXM, the rest goes to power (S. Bekman, Machine Learning Engineering, "Maximum Achievable Matmul
FLOPS")."""
ATTENTION_SHARE = 0.4
"""Of the peak, in FlashAttention-2: 35 % on H100 (arXiv 2407.08608), 50 to 73 % on A100
(2307.08691); backward less."""
TILE = (128, 256)
"""What one multiprocessor computes of a product at a time: cuBLAS' largest tile for 16-bit
operands."""
MEMORY_SHARE = 0.9
"""Of the data sheet's memory bandwidth that a stream reaches (BabelStream: A100 and H100 90 to 93
%)."""
LINK_SHARE = 0.8
"""Of a link's bandwidth that NCCL moves in large messages (nccl-tests on NVLink 3 and 4: 230 of
300, 360 of 450 GB/s in all-gathers)."""

BACKWARD = 2 / 3
"""Of a step's FLOPs: gradients by inputs and by weights for each product of the forward pass."""

LAUNCH_SECONDS = 15e-6
"""Of the host, for a kernel of eager torch, its operator's dispatch and its share of autograd
included; 5 us are the launch itself. A round number between those of others: 3 us for a launch by
the driver alone (meta-pytorch/tritonbench#1017), 45 us a kernel where much Python lies between
(facebookresearch/sam2#768: 1,185 kernels in 53.7 ms of which the GPU is busy 7)."""
COLLECTIVE_SECONDS = 125e-6
"""Of the host, for a collective called from Python: buffers, events, streams and checks of torch's
ProcessGroupNCCL. Profiles of torch 2.4 have 131 us for an all-gather, 122 us for a reduce-scatter
and 89 us for an all-reduce (pytorch/pytorch#138773); FSDP2's hook before a module may take up to 1
ms (pytorch/pytorch#173680). Half or twice of this or of a launch changes the order of few of the
pairs that were measured (docs/planning-speed.md)."""

BASE_LATENCY = 8.4e-6
NVLINK_LATENCY = 3.4e-6
PCIE_LATENCY = 5.7e-6
NETWORK_LATENCY = 14.0e-6
"""Of a ring and of each of its hops, protocol Simple (NVIDIA/nccl src/graph/tuning.cc, baseLat and
hwLat, 2.18; the same table is in NVIDIA/nccl#1334). On a DGX A100 an all-reduce of a few bytes took
1.7 to 1.9 us for each further hop, by the faster protocol of small messages (nccl-tests#123)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one GPU of a site and its links can do at most.

    Links are those of one GPU in one direction, but the network: all adapters of a node together.
    Without NVLink `nvlink_bytes_per_second` is 0, and PCIe is what GPUs of a node have.
    """

    peak_flops: Mapping[str, float]
    memory_bytes_per_second: float
    multiprocessors: int
    nvlink_bytes_per_second: float
    pcie_bytes_per_second: float
    network_bytes_per_second: float
    gpus_per_node: int


NETWORK_GB_PER_SECOND = 25.0
"""Of a node, where the site file does not say: one adapter of 200 Gbit/s."""


def hardware(option: str, gpu: Gpu, site: Site | None = None) -> Hardware | None:
    """Return what an option's GPU and the links of its nodes can do; None where the catalogue has
    no speed of it.

    Where several groups of nodes have the option, the slowest link of each kind counts: a job may
    get those.
    """
    speed = gpu.speed
    if speed is None:
        return None
    groups = [nodes for nodes in site.nodes if option in nodes.gpus] if site is not None else []

    def slowest(key: str, otherwise: float) -> float:
        site_values = [getattr(nodes.links, key) for nodes in groups]
        return 1e9 * min(
            (otherwise if value is None else value for value in site_values), default=otherwise
        )

    return Hardware(
        peak_flops={precision: 1e12 * peak for precision, peak in speed.tflops.items()},
        memory_bytes_per_second=1e9 * speed.memory_gb_per_second,
        multiprocessors=gpu.multiprocessors,
        nvlink_bytes_per_second=slowest("nvlink_gb_per_second", speed.nvlink_gb_per_second),
        pcie_bytes_per_second=slowest("pcie_gb_per_second", speed.pcie_gb_per_second),
        network_bytes_per_second=slowest("network_gb_per_second", NETWORK_GB_PER_SECOND),
        gpus_per_node=min((nodes.gpus[option] for nodes in groups), default=1),
    )


def step_seconds(work: Work, hardware: Hardware) -> float:
    """Return the seconds of one optimizer step at what the hardware can do; only ever for ranking.

    The GPU computes, waits for the collectives that nothing hides, and for what comes from the
    host; or it waits for the host to launch all that.
    """
    gpu = _compute_seconds(work, hardware)
    exposed = sum(
        max(0.0, seconds - beside * gpu) for beside, seconds in _by_overlap(work, hardware).items()
    )
    offloaded = work.offloaded_bytes / (LINK_SHARE * hardware.pcie_bytes_per_second)
    return max(gpu + exposed + offloaded, _host_seconds(work))


def _host_seconds(work: Work) -> float:
    """Return what the host needs to launch all of it.

    It is not the time of the dry run's own step, most of which is the probe's: 90 us a kernel, and
    other at each run.
    """
    called = sum(collective.count for collective in work.collectives)
    return work.launches * LAUNCH_SECONDS + called * COLLECTIVE_SECONDS


def _compute_seconds(work: Work, hardware: Hardware) -> float:
    """Return the seconds of all kernels: those of products and attention, and those that only move
    bytes.
    """
    products = sum(product_seconds(product, hardware) for product in work.products)
    attention = sum(
        flops / (ATTENTION_SHARE * _peak(hardware, precision))
        for precision, flops in work.flops.items()
    )
    return products + attention + work.bytes / (MEMORY_SHARE * hardware.memory_bytes_per_second)


_OPERAND_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


def product_seconds(product: Product, hardware: Hardware) -> float:
    """Return the seconds of products: whole waves of tiles over the multiprocessors, or their
    operands' bytes.

    Where tiles are fewer than multiprocessors, libraries choose smaller ones or split k, so that
    none is idle.
    """
    rows, columns = TILE
    tiles = math.ceil(product.m / rows) * math.ceil(product.n / columns) * product.batch
    waves = tiles / hardware.multiprocessors
    full = math.ceil(waves) / waves if waves > 1 else 1.0
    peak = PRODUCT_SHARE * _peak(hardware, product.precision)
    size = _OPERAND_BYTES.get(product.precision, 2)
    moved = (
        size
        * product.batch
        * (product.m * product.k + product.k * product.n + product.m * product.n)
    )
    bound = product.count * moved / (MEMORY_SHARE * hardware.memory_bytes_per_second)
    return max(product.flops * full / peak, bound)


def _peak(hardware: Hardware, precision: str) -> float:
    """Return the peak in this precision; in one that a GPU lacks, that of fp32, in which it is then
    computed.
    """
    return hardware.peak_flops.get(precision) or hardware.peak_flops["fp32"]


def _by_overlap(work: Work, hardware: Hardware) -> dict[float, float]:
    """Return the seconds of collectives by the part of the computation that they can run beside."""
    seconds: dict[float, float] = defaultdict(float)
    for collective in work.collectives:
        seconds[collective.beside] += collective_seconds(collective, hardware)
    return seconds


_WHOLE = ("send", "broadcast", "reduce")
"""Kinds of which all bytes go over each link."""


def collective_seconds(collective: Collective, hardware: Hardware) -> float:
    """Return the seconds of collectives on a ring, as NCCL reckons them: each hop's latency, and
    bytes by bandwidth.

    All GPUs of a node do the like at once, in other groups: a group has the share of the network
    that its ranks on a node are of the node's GPUs. On one node, or where the network is faster,
    the ring is as fast as its links there.
    """
    ranks, nodes = collective.ranks, min(collective.nodes, collective.ranks)
    if ranks <= 1:
        return 0.0
    inside = hardware.nvlink_bytes_per_second or hardware.pcie_bytes_per_second
    hop = NVLINK_LATENCY if hardware.nvlink_bytes_per_second else PCIE_LATENCY
    slowest = inside
    if nodes > 1:
        network = hardware.network_bytes_per_second * min(
            1.0, ranks / nodes / hardware.gpus_per_node
        )
        slowest = network if ranks == nodes else min(inside, network)
    rounds = 2 if collective.kind == "all_reduce" else 1
    hops = rounds * (ranks - 1)
    between = min(hops, rounds * nodes) if nodes > 1 else 0
    latency = BASE_LATENCY + (hops - between) * hop + between * NETWORK_LATENCY
    moved = collective.bytes * (1.0 if collective.kind in _WHOLE else rounds * (ranks - 1) / ranks)
    return collective.count * (latency + moved / (LINK_SHARE * slowest))


def work_of(trace: Trace) -> Work | None:
    """Return what one optimizer step did by the counts of a dry run.

    None where it was not counted; `why_no_time` says why.

    A group as large as the job is on all of its nodes. Of smaller ones, those that are waited for
    at once are tensor parallel, and their ranks are neighbours; others are data parallel, and have
    a rank on each node if they can.
    """
    counts = trace.counts
    if counts is None or _uncounted(trace):
        return None
    flops: dict[str, float] = defaultdict(float)
    for row in counts.rows:
        if row.kind in ("attention", "convolution"):
            flops[row.word] += float(row.of[0]) * row.count
    return Work(
        products=tuple(
            Product(*row.of, row.word, row.count) for row in counts.rows if row.kind == "product"
        ),
        flops=flops,
        bytes=_touched_bytes(trace, counts),
        launches=counts.launches,
        collectives=tuple(
            _collective(row, trace, counts.backwards)
            for row in counts.rows
            if row.kind in _COLLECTIVES and row.of[1] > 1
        ),
        offloaded_bytes=float(
            sum(row.of[0] * row.count for row in counts.rows if row.kind == "copied")
        ),
    )


def why_no_time(trace: Trace, option: str, hardware: Hardware | None) -> str:
    """Return why nothing is known of the time of what was run dry, on an option's GPUs; "" where it
    is.
    """
    return _uncounted(trace) if hardware is not None else f"no speed of {option} is known"


def _uncounted(trace: Trace) -> str:
    """Return why it is not known what a step did; "" where it is."""
    counts = trace.counts
    if counts is None:
        steps = sum(mark.kind == "step" for mark in trace.marks)
        return "what a step does was not counted" if steps > 1 else "no two steps of it were seen"
    if any(row.kind == "graph" for row in counts.rows):
        return "it runs CUDA graphs, whose kernels a dry run does not see"
    return ""


_DEEPER = {"backward": 1, "backward_end": -1}

_COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send",
)


def _collective(row: CountedRow, trace: Trace, backwards: int) -> Collective:
    """Return a counted collective with the nodes of its group, and what of the computation it runs
    beside.

    What is gathered ahead, and what is scattered, runs beside each micro batch (FSDP); gradients
    that are reduced, as DDP does, beside the last backward pass.
    """
    size, ranks = row.of[:2]
    waited = row.word == "waited"
    nodes = min(ranks, trace.nodes)
    if waited and ranks < trace.world_size:
        nodes = math.ceil(ranks * trace.nodes / trace.world_size)
    last_backward = BACKWARD / max(1, backwards)
    beside = last_backward if row.kind == "all_reduce" else 1.0
    if waited:
        beside = 0.0
    return Collective(row.kind, size, ranks, nodes, row.count, beside)


def _touched_bytes(trace: Trace, counts: StepCounts) -> float:
    """Return the bytes that kernels other than products read and write in the step, told by what is
    allocated.

    What is made in a step is written once and read once, an activation once more in the backward
    pass. The optimizer reads and writes its state and the parameters, and reads the gradients.
    """
    first = next((mark.allocations for mark in trace.marks if mark.kind == "step"), 0)
    held = dict.fromkeys(Category, 0)
    for allocation in trace.allocations[:first]:
        held[allocation.category] += allocation.size
    activations = counts.backwards * _activation_bytes(trace)
    state = 2 * held[Category.PARAM] + 2 * held[Category.OPT] + held[Category.GRAD]
    return 2 * counts.allocated + activations + state


def _activation_bytes(trace: Trace) -> float:
    """Return the bytes that a backward pass finds of its forward pass, in the mean of those in the
    trace. Passes within one (reentrant checkpoints) belong to it.
    """
    passes = within = 0
    for mark in trace.marks:
        passes += mark.kind == "backward" and not within
        if mark.kind in _DEEPER:
            within = max(0, within + _DEEPER[mark.kind])
        elif mark.kind == "step":  # where passes repeat, a mark of one may be missing
            within = 0
    kept = (each.size for each in trace.allocations if each.category is Category.ACT)
    return sum(kept) / max(1, passes)


def same_class(a: float, b: float) -> bool:
    """Whether two times are a tie."""
    return abs(a - b) < TIE * min(a, b)


def cannot_rank(nodes: int, *, pipelines: bool, tensor_nodes: int = 1) -> str:
    """Return why a way that needs so many nodes, has pipelines, or has each tensor of a layer on so
    many nodes, is not ranked by speed; "" where it is.

    Collectives of tensor parallelism that cross nodes are as many as layers, waited for each, and
    all GPUs of a node have one at a time: rows of 80 B took 2 to 7 times as long as a ring of
    NCCL's latencies and bandwidths says. A plan offers no such way; a job may be written so.
    """
    if pipelines:
        return "pipelines are not ranked by speed"
    if tensor_nodes > 1:
        return "tensor parallelism across nodes is not ranked by speed"
    return f"more than {MOST_NODES} nodes are not ranked by speed" if nodes > MOST_NODES else ""
