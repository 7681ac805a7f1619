"""What does one step of a decoder do, trained in a way that somebody measured? By arithmetic, for
the speed model.

Of nanotron (huggingface/nanotron), whose training the Ultra-Scale Playbook measured: tensor
parallelism with sequence parallelism and asynchronous collectives, gradients accumulated and
reduced in fp32, ZeRO stage 1, FlashAttention-2. Of Colossal-AI 0.3 with checkpointing and eager
attention in fp16, which LLMem measured. How often a tensor of activations is read and written is
counted from their modules; no figure here comes from the measurements.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.llmem import Decoder, Gpus, Method
from xmem_slurm.planning.speed import BACKWARD, Collective, Hardware, Product, Work

NANOTRON_SEQUENCE = 4096
NANOTRON_VOCABULARY = 131072
NANOTRON = {
    "1B": Decoder(16, 2048, 8192, NANOTRON_VOCABULARY, gated=True),
    "3B": Decoder(28, 3072, 8192, NANOTRON_VOCABULARY, gated=True),
    "8B": Decoder(32, 4096, 14336, NANOTRON_VOCABULARY, gated=True, tied=False),
    "80B": Decoder(80, 8192, 28672, NANOTRON_VOCABULARY, gated=True, tied=False),
}
"""The models of the Playbook's benchmark; all heads have their own keys and values."""

P5_NETWORK_BYTES_PER_SECOND = 400e9
"""Of a node of those measurements: 32 adapters of 100 Gbit/s (AWS p5.48xlarge)."""
P5_GPUS = 8

LAYER_LAUNCHES = 100
"""Kernels of a layer, forward and backward; by hand: 35 and 65."""
SPLIT_LAYER_LAUNCHES = 150
"""With tensor parallelism: products in parts, so that collectives run meanwhile, and copies around
them."""
LAYER_PASSES = 3 * 14
"""How often a tensor of tokens x hidden is read or written in a layer by what is no product: norms,
residuals and rotations forward, and twice that backward."""
FFN_PASSES = 3 * 3
"""The same of tokens x ffn: the gate."""
LOGIT_BYTES = 50
"""Read and written for a logit: an output in bf16, fp32 from there on in eager cross entropy, and
back."""
ACCUMULATION_BYTES = 10
"""For a parameter in each micro batch: a gradient in bf16 is added to one in fp32."""
OPTIMIZER_BYTES = 40
"""For a parameter that a rank steps: clipping, Adam in fp32, and the copy in bf16."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured configuration of nanotron, of which `tokens_per_second` is what one GPU did."""

    model: str
    nodes: int
    micro_batch: int
    accumulation: int
    global_batch: int
    dp: int
    pp: int
    tp: int
    zero: int
    tokens_per_second: float

    @property
    def seconds(self) -> float:
        """What was measured of one optimizer step."""
        return (
            self.global_batch
            * NANOTRON_SEQUENCE
            / (self.tokens_per_second * self.dp * self.pp * self.tp)
        )


def work_of_row(row: Row, model: Decoder) -> Work:
    """Return what one rank of nanotron does in one optimizer step."""
    tokens, tp, times = row.micro_batch * NANOTRON_SEQUENCE, row.tp, row.accumulation
    own = model.parameters // tp
    layer = 2 * tokens * (LAYER_PASSES * model.hidden + FFN_PASSES * model.ffn) / tp
    micro_batch = (
        model.layers * layer
        + LOGIT_BYTES * tokens * model.vocabulary / tp
        + ACCUMULATION_BYTES * own
    )
    attention = 3.5 * 2 * tokens * NANOTRON_SEQUENCE * model.hidden * model.layers / tp
    return Work(
        products=tuple(products(model, tokens, tp, "bf16", times, recomputed=False)),
        flops={"bf16": times * attention},
        bytes=times * micro_batch + OPTIMIZER_BYTES * own / (row.dp if row.zero else 1),
        launches=times * model.layers * (LAYER_LAUNCHES if tp == 1 else SPLIT_LAYER_LAUNCHES),
        collectives=(*_sequence_parallel(model, row, tokens), *_data_parallel(own, row)),
    )


def products(
    model: Decoder, tokens: int, tp: int, precision: str, times: int, *, recomputed: bool
) -> Iterator[Product]:
    """Forward, for inputs and for weights: of each layer, which may be computed again, and of the
    logits.
    """
    h, f = model.hidden, model.ffn
    shapes = [(h + (model.keys or 2 * h), h), (h, h), (f, h), (h, f)] + (
        [(f, h)] if model.gated else []
    )
    inner = [
        ((n // tp, k) if n != h else (n, k // tp), model.layers, recomputed) for n, k in shapes
    ]
    for (n, k), count, again in [*inner, ((model.vocabulary // tp, h), 1, False)]:
        yield Product(tokens, n, k, 1, precision, count * times * (2 if again else 1))
        yield Product(tokens, k, n, 1, precision, count * times)
        yield Product(n, k, tokens, 1, precision, count * times)


def _sequence_parallel(model: Decoder, row: Row, tokens: int) -> Iterable[Collective]:
    """Of each layer: inputs are gathered forward, again for the weights, and gradients; outputs are
    scattered.
    """
    if row.tp == 1:
        return
    size = 2 * tokens * model.hidden
    nodes = -(-row.tp // P5_GPUS)
    count = model.layers * row.accumulation
    yield Collective("all_gather", size, row.tp, nodes, 6 * count)
    yield Collective("reduce_scatter", size, row.tp, nodes, 4 * count)


def _data_parallel(own: int, row: Row) -> Iterable[Collective]:
    """Gradients in fp32, beside the last backward pass; with ZeRO what each rank has stepped is
    gathered then.
    """
    if row.dp == 1:
        return
    nodes, last = min(row.dp, -(-row.dp * row.tp // P5_GPUS)), BACKWARD / row.accumulation
    if row.zero:
        yield Collective("reduce_scatter", 4 * own, row.dp, nodes, 1, last)
        yield Collective("all_gather", 2 * own, row.dp, nodes)
    else:
        yield Collective("all_reduce", 4 * own, row.dp, nodes, 1, last)


EAGER_LAYER_LAUNCHES = 120
"""Kernels of a layer, forward twice and backward; by hand: 30, 30 and 60."""
SCORE_PASSES = 24
"""How often a tensor of the scores of attention is read or written, forward twice and backward:
eager softmax."""
HEAD = 128
"""The width of a head, for the scores; 64 to 128 in these models."""


def work_of_method(model: Decoder, method: Method, tp: int, bs: int, on: Gpus) -> Work:
    """Return what one rank of Colossal-AI does in one step with `bs` samples.

    Chunks are gathered when they are needed, forward and backward, and nothing is computed
    meanwhile.
    """
    tokens, dp, own = bs * on.sl, on.n // tp, model.parameters // tp
    layer = 2 * tokens * (LAYER_PASSES * model.hidden + FFN_PASSES * model.ffn) * 4 / 3
    scores = 2 * SCORE_PASSES * tokens * on.sl * model.hidden / HEAD / tp
    collectives = (
        [Collective("all_reduce", 2 * tokens * model.hidden, tp, 1, 6 * model.layers)]
        if tp > 1
        else []
    )
    if dp > 1 and method is Method.CDP:
        collectives.append(Collective("all_reduce", 2 * own, dp, 1, 1, BACKWARD))
    elif dp > 1:
        collectives += [
            Collective("all_gather", 2 * own, dp, 1, 2),
            Collective("reduce_scatter", 2 * own, dp),
        ]
    attention = 4 * 4 * tokens * on.sl * model.hidden * model.layers / tp
    return Work(
        products=tuple(products(model, tokens, tp, "fp16", 1, recomputed=True)),
        flops={"fp16": attention},
        bytes=model.layers * (layer + scores)
        + LOGIT_BYTES * tokens * model.vocabulary
        + OPTIMIZER_BYTES * own / dp,
        launches=model.layers * EAGER_LAYER_LAUNCHES,
        collectives=tuple(collectives),
    )


def p5_node(h100: Hardware) -> Hardware:
    """Return the node of the measurements: the catalogue's GPU, and the network that nodes of that
    kind have.
    """
    return replace(
        h100, network_bytes_per_second=P5_NETWORK_BYTES_PER_SECOND, gpus_per_node=P5_GPUS
    )
