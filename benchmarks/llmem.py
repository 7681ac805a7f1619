"""Which method of distributed fine-tuning does LLMem pick, and why? Its estimator and its Algorithm
1, by its names.

Kim et al., LLMem: Estimating GPU Memory Usage for Fine-Tuning Pre-Trained LLMs (arXiv 2404.10933,
IJCAI 2024), read beside its authors' program (github.com/taehokim20/LLMem, size_estimator.py),
which says what the terms are made of: fine-tuning in fp16 with Adam in fp32, in Colossal-AI's
chunks, with gradient checkpointing, 512 tokens a sample.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

MIB = 1 << 20
ROUNDED_TO = 2 * MIB
"""What CUDA gives memory out in: each term is rounded up to it."""
SPEED_UP_OF_CDP = 1.5
"""What Algorithm 1 takes plain data parallelism to be faster by than sharded, at the same batch."""


class Method(StrEnum):
    """In the order in which Algorithm 1 takes them where scores are equal."""

    CDP = "CDP"
    """Conventional data parallelism: all of the model on each GPU."""
    ADP = "ADP"
    """Advanced data parallelism: ZeRO-3 in chunks."""
    TP = "TP"
    DP_TP = "DP+TP"
    OFFLOAD = "CPU offload"


@dataclass(frozen=True, slots=True)
class Decoder:
    """A transformer-based decoder, by what its configuration says.

    `keys` is the width of keys and of values together (2 hidden, unless heads share them), `gated`
    whether its feed-forward part has three matrices, `positions` how many positions have a learned
    embedding, and `loss_in_fp32` whether transformers computes its loss so.
    """

    layers: int
    hidden: int
    ffn: int
    vocabulary: int
    positions: int = 0
    keys: int = 0
    gated: bool = False
    tied: bool = True
    loss_in_fp32: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of the matrices of one layer."""
        attention = 2 * self.hidden**2 + self.hidden * (self.keys or 2 * self.hidden)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """Of all of it, biases and norms left out: below 0.1 %."""
        embedding = (self.vocabulary * (1 if self.tied else 2) + self.positions) * self.hidden
        return self.layers * self.layer_parameters + embedding


@dataclass(frozen=True, slots=True)
class Gpus:
    """What is trained on: `n` GPUs of `m_total` bytes each, `m_base` of them taken at first;
    samples of `sl` tokens.

    `m_base` is the CUDA context, NCCL, and what Colossal-AI's chunks hold beyond parameters.
    """

    n: int
    m_total: int
    m_base: float
    sl: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The paper's terms with `bs` samples of `sl` tokens, bytes. Gradients take the place of the
    parameters in fp16.
    """

    m_p16: int
    m_p32: int
    m_os: int
    m_head: int
    m_out: int
    m_lm: int
    m_back: int


def terms(model: Decoder, bs: int, sl: int, tp: int) -> Terms:
    """Return what the peak is made of, each rounded up to what CUDA gives memory out in.

    `m_head` are weights of the output layer that are no embedding's, in fp16. `m_out` is what
    checkpointing keeps: the output of each layer and of the two embeddings. `m_lm`
    is the output layer's own copy of its weights, the logits, and twice those of all tokens but the
    last: the loss and its gradient. `m_back` is what tensor parallelism gathers for the backward
    pass.
    """
    count, tokens = model.parameters, bs * sl
    head = 0 if model.tied else model.vocabulary * model.hidden
    of_logit = 4 if model.loss_in_fp32 else 2
    return Terms(
        m_p16=_rounded(2 * count),
        m_p32=_rounded(4 * count),
        m_os=_rounded(8 * (count - head)),
        m_head=_rounded(2 * head),
        m_out=(model.layers + 2) * _rounded(2 * tokens * model.hidden),
        m_lm=_rounded(2 * model.vocabulary * model.hidden)
        + _rounded(of_logit * tokens * model.vocabulary)
        + 2 * _rounded(of_logit * bs * (sl - 1) * model.vocabulary),
        m_back=model.layers * _rounded(2 * tokens * model.hidden * (tp - 1) // tp),
    )


def _rounded(size: int) -> int:
    return math.ceil(size / ROUNDED_TO) * ROUNDED_TO


def peak_bytes(model: Decoder, method: Method, bs: int, tp: int, on: Gpus) -> float:
    """Return the peak of each GPU; `tp` of them share each layer where the method has that.

    `param_bytes` of its authors adds to what is there before any sample (which has a GPU's own part
    of parameters in fp16 and fp32) the optimizer's part, and what is gathered of others' fp16: (n -
    1) of n parts, (n - tp) / n - 1 / n of it where tensors are shared, too. An output layer with
    weights of its own is in neither.
    """
    m, n = terms(model, bs, on.sl, tp), on.n
    moving = on.m_base + m.m_out + m.m_lm
    own, others = (m.m_p16 + m.m_p32 + m.m_os) / n, (m.m_p16 - m.m_head) / n
    match method:
        case Method.CDP:
            return moving + m.m_p16 + m.m_p32 + m.m_os
        case Method.TP:
            return moving + (m.m_p16 + m.m_p32 + m.m_os) / tp + m.m_back
        case Method.DP_TP:
            return moving + own + (n - tp - 1) * others + m.m_back
        case _:
            return moving + own + (n - 1) * others


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method with the largest batch of one GPU that fits, 0 where none does, and its score."""

    method: Method
    tp: int
    bs: int
    score: float


def score(method: Method, bs: int, n: int, tp: int) -> float:
    """Return how many samples a step has, with what plain data parallelism is taken to be faster
    by.
    """
    return {
        Method.CDP: bs * n * SPEED_UP_OF_CDP,
        Method.ADP: bs * n,
        Method.DP_TP: bs * n / tp,
    }.get(method, bs)


def candidates(model: Decoder, on: Gpus) -> list[Candidate]:
    """Grow the batch of each method until its peak exceeds the GPU (Algorithm 1)."""
    ways = [(Method.CDP, 1), (Method.ADP, 1), (Method.TP, on.n)]
    ways += [(Method.DP_TP, tp) for tp in range(2, on.n) if on.n % tp == 0]
    found = []
    for method, tp in ways:
        bs = 0
        while peak_bytes(model, method, bs + 1, tp, on) <= on.m_total:
            bs += 1
        found.append(Candidate(method, tp, bs, score(method, bs, on.n, tp)))
    return found


def pick(found: list[Candidate]) -> Method:
    """Return the method of the highest score, the first of equal ones; nothing fits: parameters go
    to the host.
    """
    best = max(found, key=lambda each: each.score)
    return best.method if best.bs else Method.OFFLOAD


GPU = "v100-sxm2-16gb"
"""That of table 3, in our catalogue."""
FOUR_V100 = Gpus(4, 16160 * MIB, 4.0e9, 512)
"""What table 3 was measured on; NVML says so of a V100 of 16 GB.

LLMem measures `m_base` on the GPU and publishes none. With 3.2 to 4.1 GB its estimator runs out of
memory where its table does, and with 4.0 most of its picks come out: so it is compared at its best.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of table 3: a model, and the seconds of fine-tuning it on 4 GPUs by each method; None:
    out of memory.
    """

    name: str
    model: Decoder
    adp: int | None
    dp_tp: int | None
    tp: int | None

    @property
    def seconds(self) -> dict[Method, int]:
        """Of the methods that ran."""
        all_of = {Method.ADP: self.adp, Method.DP_TP: self.dp_tp, Method.TP: self.tp}
        return {method: seconds for method, seconds in all_of.items() if seconds is not None}


TABLE_3 = (
    Measured("OPT-1.3b", Decoder(24, 2048, 8192, 50272, 2050), 688, 1616, 2186),
    Measured("OPT-2.7b", Decoder(32, 2560, 10240, 50272, 2050), None, 8174, 6038),
    Measured("bloom-1b1", Decoder(24, 1536, 6144, 250880), 680, 1724, 2631),
    Measured("bloom-3b", Decoder(30, 2560, 10240, 250880), None, None, 14495),
    Measured("BioGPT-Large", Decoder(48, 1600, 6400, 57717, 2050), 1022, 3315, 4773),
    Measured(
        "codegen-2B",
        Decoder(32, 2560, 10240, 51200, tied=False, loss_in_fp32=True),
        None,
        6314,
        6244,
    ),
    Measured("gpt_bigcode-1.1B", Decoder(24, 2048, 8192, 49280, 2048, keys=256), 651, 1292, 1652),
    Measured(
        "gpt-neo-1.3B", Decoder(24, 2048, 8192, 50257, 2048, loss_in_fp32=True), 768, 1686, 2372
    ),
    Measured("llama-7b", Decoder(32, 4096, 11008, 32000, gated=True, tied=False), None, None, None),
)
"""Its table 3; the shapes are those of the models' configurations on Hugging Face."""
