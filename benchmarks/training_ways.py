"""What does one step of a decoder do, trained in one of the ways that a plan offers, that somebody
measured? By arithmetic, for the speed model; figures are in data/training_speed.csv.

What each library gathers, reduces and waits for is read of its source, as of the time of the
measurements: FSDP of torch 2.0, DeepSpeed 0.5 and 0.14, InternLM 0.2. No figure here comes from the
measurements.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.llmem import Decoder
from benchmarks.training_speed import (
    ACCUMULATION_BYTES,
    FFN_PASSES,
    LAYER_LAUNCHES,
    LAYER_PASSES,
    LOGIT_BYTES,
    OPTIMIZER_BYTES,
    SCORE_PASSES,
    SPLIT_LAYER_LAUNCHES,
    products,
)
from xmem_slurm.planning import speed
from xmem_slurm.planning.speed import BACKWARD, Collective, Hardware, Work
from xmem_slurm.site.schema import Gpu

MPT_VOCABULARY = 50368
GPT_2_VOCABULARY = 50257


def _mpt(layers: int, hidden: int) -> Decoder:
    return Decoder(layers, hidden, 4 * hidden, MPT_VOCABULARY, 2048)


def _gpt_2(layers: int, hidden: int) -> Decoder:
    return Decoder(layers, hidden, 4 * hidden, GPT_2_VOCABULARY, 1024)


MODELS: Mapping[str, Decoder] = {
    "MPT-125M": _mpt(12, 768),
    "MPT-350M": _mpt(24, 1024),
    "MPT-760M": _mpt(24, 1536),
    "MPT-1B": _mpt(24, 2048),
    "MPT-3B": _mpt(32, 2560),
    "MPT-7B": _mpt(32, 4096),
    "MPT-13B": _mpt(40, 5120),
    "MPT-30B": _mpt(48, 7168),
    "MPT-70B": _mpt(80, 8192),
    "GPT-2": _gpt_2(12, 768),
    "GPT-2-medium": _gpt_2(24, 1024),
    "GPT-2-large": _gpt_2(36, 1280),
    "GPT-2-XL": _gpt_2(48, 1600),
    "GPT-2-2.9B": _gpt_2(96, 1600),
    "LLaMA-7B": Decoder(32, 4096, 11008, 32000, gated=True, tied=False),
    "InternLM-7B": Decoder(32, 4096, 11008, 103168, gated=True, tied=False),
}
"""Their shapes as their repositories have them; parameters of the MPTs come out as in the tables
that were measured."""
HEAD = 64
"""The width of a head of GPT-2, for the scores of eager attention."""
_SHARDED = {"fsdp1": 0.0, "fsdp2": 1.0, "zero3": 1.0, "zero3-offload": 1.0}
"""Beside how much of the computation parameters are gathered for the backward pass. FSDP without
BACKWARD_PRE (Composer's default is BACKWARD_POST, that of torch before 2.0 none) gathers a layer's
once the one after it is done: nothing is computed meanwhile. That is what a dry run counts, too
(tests/integration/probe/test_work.py)."""
PARTS: Mapping[str, int] = {"deepspeed-autotuning": 12}
"""In how many parts a layer is gathered, where those are not one: DeepSpeed 0.5 has each parameter
gathered for itself (`_allgather_param` of zero/partition_parameters.py), and 12 are in a layer of
GPT-2."""
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Way:
    """One measured configuration; the fields are those of the CSV (data/README.md)."""

    source: str
    model: str
    gpu: str
    nodes: int
    gpus_per_node: int
    network_gb_per_second: float
    nvlink_gb_per_second: float
    sequence: int
    method: str
    shards: int
    tp: int
    micro_batch: int
    grad_accumulation: int
    checkpointing: bool
    reduced_in: str
    attention: str
    tokens_per_second_per_gpu: float

    @property
    def gpus(self) -> int:
        """All that train."""
        return self.nodes * self.gpus_per_node

    @property
    def dp(self) -> int:
        """How many of them, or groups of tensor parallel ones, have samples of their own."""
        return self.gpus // self.tp

    @property
    def group(self) -> tuple[str, str]:
        """What it is compared with: the same model, sequence and GPU, in one publication."""
        return self.source, f"{self.model}, {self.sequence}, {self.gpu.split('-')[0]}"

    @property
    def tokens(self) -> int:
        """Of one optimizer step."""
        return self.micro_batch * self.sequence * self.grad_accumulation * self.dp

    @property
    def seconds(self) -> float:
        """What was measured: of one GPU, for a token. Ways on other numbers of nodes are compared
        by it as by their cost.
        """
        return 1 / self.tokens_per_second_per_gpu


def read(path: Path) -> list[Way]:
    """Read the CSV.

    Raises:
        OSError, ValueError, KeyError, csv.Error: it is none.
    """
    kinds = {"str": str, "int": int, "float": lambda text: float(text or 0)}
    kinds["bool"] = lambda text: bool(int(text))
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Way(**{each.name: kinds[_name(each.type)](row[each.name]) for each in fields(Way)})
            for row in csv.DictReader(file)
        ]


def _name(kind: object) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "str")


def hardware(way: Way, gpus: Mapping[str, Gpu]) -> Hardware:
    """Return what it was measured on: the catalogue's GPU, on nodes as the publication says."""
    gpu = speed.hardware(way.gpu, gpus[way.gpu])
    assert gpu is not None, "the catalogue has its speed"
    nvlink = 1e9 * way.nvlink_gb_per_second or gpu.nvlink_bytes_per_second
    return replace(
        gpu,
        nvlink_bytes_per_second=nvlink,
        network_bytes_per_second=1e9 * way.network_gb_per_second,
        gpus_per_node=way.gpus_per_node,
    )


def seconds(way: Way, gpus: Mapping[str, Gpu]) -> float:
    """Return what the speed model says of one GPU, for a token; only ever for ranking."""
    step = speed.step_seconds(work_of_way(way), hardware(way, gpus))
    return step * way.gpus / way.tokens


def work_of_way(way: Way) -> Work:
    """Return what one rank does in one optimizer step."""
    model, times, tp = MODELS[way.model], way.grad_accumulation, way.tp
    tokens, own = way.micro_batch * way.sequence, model.parameters // way.tp
    forward_passes = 4 / 3 if way.checkpointing else 1
    layer = 2 * tokens * (LAYER_PASSES * model.hidden + FFN_PASSES * model.ffn) * forward_passes
    of_kernels = 3.5 + way.checkpointing
    attention = of_kernels * 2 * tokens * way.sequence * model.hidden * model.layers / tp
    if way.attention == "eager":
        scores = SCORE_PASSES * 3 / 4 * forward_passes * 2 * tokens * way.sequence
        layer += scores * model.hidden / HEAD
        attention *= 2 * 3 / 3.5  # of the whole square of scores, by three products for one
    sharded = 1 if way.method == "ddp" else way.shards or way.dp
    micro_batch = model.layers * layer / tp + LOGIT_BYTES * tokens * model.vocabulary / tp
    kept = own // sharded if way.method in _SHARDED else own
    launches = (LAYER_LAUNCHES if tp == 1 else SPLIT_LAYER_LAUNCHES) * forward_passes
    precision = "fp16" if way.gpu.startswith("v100") else "bf16"
    offloaded = 4 * own // way.dp if way.method.endswith("offload") else 0
    recomputed = way.checkpointing
    return Work(
        products=tuple(products(model, tokens, tp, precision, times, recomputed=recomputed)),
        flops={precision: times * attention},
        bytes=times * (micro_batch + ACCUMULATION_BYTES * kept)
        + (0 if offloaded else OPTIMIZER_BYTES * own / sharded),
        launches=int(times * model.layers * launches),
        collectives=(*_tensor_parallel(model, way, tokens), *_collectives(model, way, own)),
        offloaded_bytes=float(offloaded),
    )


def _tensor_parallel(model: Decoder, way: Way, tokens: int) -> Iterator[Collective]:
    """Of each layer: outputs of both halves are summed, forward and backward, and waited for."""
    if way.tp > 1:
        times = 4 * model.layers * way.grad_accumulation
        yield Collective("all_reduce", 2 * tokens * model.hidden, way.tp, 1, times)


def _collectives(model: Decoder, way: Way, own: int) -> Sequence[Collective]:
    """Return what ranks that share a model, or its copies, send each other."""
    times, layers = way.grad_accumulation, model.layers
    reduced, ranks, nodes = _BYTES[way.reduced_in], way.dp, way.nodes
    if way.method in _SHARDED:
        parts, backward = layers * PARTS.get(way.source, 1), _SHARDED[way.method]
        size, count = own // parts, parts * times
        return (
            Collective("all_gather", 2 * size, ranks, nodes, count, 1.0),
            Collective("all_gather", 2 * size, ranks, nodes, count, backward),
            Collective("reduce_scatter", reduced * size, ranks, nodes, count, 1.0),
        )
    last = BACKWARD / times
    if way.method == "ddp":
        return (Collective("all_reduce", reduced * own, ranks, nodes, 1, last),)
    shards = way.shards or ranks
    gathered = Collective("all_gather", 2 * own, shards, nodes if shards == ranks else 1)
    if way.method == "zero1":
        return (Collective("all_reduce", reduced * own, ranks, nodes, 1, last), gathered)
    return (Collective("reduce_scatter", reduced * own, ranks, nodes, times, BACKWARD), gathered)
