"""What does one step of a Llama-like model do, trained as a row of measured training speed says? By arithmetic.

The rows are nanotron's (huggingface/nanotron): tensor parallelism with sequence parallelism and asynchronous
collectives, gradients accumulated and reduced in fp32, ZeRO stage 1, FlashAttention-2, Adam in fp32.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from xmem_slurm.plan.speed import Collective, Hardware, Product, Work


@dataclass(frozen=True, slots=True)
class Llama:
    """A model's shape; `tied`: the output layer has the embedding's weights."""

    layers: int
    hidden: int
    ffn: int
    tied: bool
    vocabulary: int = 131072
    sequence: int = 4096

    @property
    def layer_parameters(self) -> int:
        """Of one layer; all heads have their own keys and values."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """Of all of it, without norms."""
        return self.layers * self.layer_parameters + (1 if self.tied else 2) * self.vocabulary * self.hidden


MODELS = {
    "1B": Llama(16, 2048, 8192, tied=True),
    "3B": Llama(28, 3072, 8192, tied=True),
    "8B": Llama(32, 4096, 14336, tied=False),
    "80B": Llama(80, 8192, 28672, tied=False),
}
"""Those of the Ultra-Scale Playbook's benchmark."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured configuration; `seconds` is that of an optimizer step."""

    model: str
    nodes: int
    micro_batch: int
    accumulation: int
    dp: int
    pp: int
    tp: int
    zero: int
    tokens_per_second_per_gpu: float
    memory_gb: float
    global_batch: int

    @property
    def group(self) -> tuple[str, int]:
        """What is compared with each other: the same model on the same GPUs."""
        return self.model, self.nodes

    def seconds(self, model: Llama) -> float:
        """Return what was measured of one optimizer step."""
        gpus = self.dp * self.pp * self.tp
        return self.global_batch * model.sequence / (self.tokens_per_second_per_gpu * gpus)


H100_NODE = Hardware(
    peak_flops={"bf16": 989e12, "fp32": 67e12},
    memory_bytes_per_second=3.35e12,
    multiprocessors=132,
    nvlink_bytes_per_second=450e9,
    pcie_bytes_per_second=64e9,
    network_bytes_per_second=400e9,
    gpus_per_node=8,
)


def work_of(row: Row, model: Llama, gpus_per_node: int = 8) -> Work:
    """Return what one rank does in one optimizer step."""
    tokens, tp, times = row.micro_batch * model.sequence, row.tp, row.accumulation
    own = model.parameters // tp
    return Work(
        products=tuple(_products(model, tokens, tp, times)),
        flops={"bf16": times * 3.5 * 2 * tokens * model.sequence * model.hidden * model.layers / tp},
        bytes=times * _bytes_of_micro_batch(model, tokens, tp, own) + _bytes_of_optimizer(own, row),
        launches=times * model.layers * (100 if tp == 1 else 150),
        collectives=(*_tensor_parallel(model, tokens, tp, times, gpus_per_node), *_data_parallel(own, row, gpus_per_node)),
    )


def _products(model: Llama, tokens: int, tp: int, times: int) -> Iterable[Product]:
    """Forward, and backward for inputs and for weights, of the layers and the output layer."""
    h, f = model.hidden, model.ffn
    shapes = [(3 * h // tp, h, model.layers), (h, h // tp, model.layers), (2 * f // tp, h, model.layers)]
    shapes += [(h, f // tp, model.layers), (model.vocabulary // tp, h, 1)]
    for n, k, count in shapes:
        for rows, columns, depth in ((tokens, n, k), (tokens, k, n), (n, k, tokens)):
            yield Product(rows, columns, depth, count=count * times)


def _bytes_of_micro_batch(model: Llama, tokens: int, tp: int, own: int) -> float:
    h, f = model.hidden, model.ffn
    layer = 3 * 2 * tokens * (14 * h + 3 * f) / tp
    head = 50 * tokens * model.vocabulary / tp
    return model.layers * layer + head + 10 * own


def _bytes_of_optimizer(own: int, row: Row) -> float:
    return 40.0 * own / (row.dp if row.zero else 1)


def _tensor_parallel(model: Llama, tokens: int, tp: int, times: int, gpus_per_node: int) -> Iterable[Collective]:
    if tp > 1:
        size, nodes, count = 2 * tokens * model.hidden, -(-tp // gpus_per_node), model.layers * times
        yield Collective("all_gather", size, tp, nodes, 6 * count)
        yield Collective("reduce_scatter", size, tp, nodes, 4 * count)


def _data_parallel(own: int, row: Row, gpus_per_node: int) -> Iterable[Collective]:
    if row.dp > 1:
        nodes = min(row.dp, -(-row.dp * row.tp // gpus_per_node))
        last = 2 / 3 / row.accumulation
        if row.zero:
            yield Collective("reduce_scatter", 4 * own, row.dp, nodes, 1, last)
            yield Collective("all_gather", 2 * own, row.dp, nodes)
        else:
            yield Collective("all_reduce", 4 * own, row.dp, nodes, 1, last)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [
            Row(r["model"], int(r["nodes"]), int(r["micro_batch"]), int(r["grad_accumulation"]), int(r["dp"]), int(r["pp"]), int(r["tp"]), int(r["zero"]), float(r["tokens_per_second_per_gpu"]), float(r["memory_gb"]), int(r["global_batch"]))
            for r in csv.DictReader(file)
        ]
