"""Which runs does the ground-truth campaign measure? Each is one `Config`, most telling first.

Standard library only, for Python 3.9 and newer: read on GPU machines that have nothing of this
project installed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE_MODELS = (
    "resnet50",
    "vgg16",
    "mobilenet_v2",
    "mnasnet1_0",
    "regnet_x_400mf",
    "convnext_tiny",
    "resnet101",
    "resnet152",
    "vgg19",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "regnet_y_400mf",
    "convnext_base",
    "efficientnet_b0",
    "vit_b_16",
)
"""The paper's twelve, ResNet-50, and one model each of two families that it leaves out."""

LANGUAGE_MODELS = (
    "openai-community/gpt2",
    "distilbert/distilgpt2",
    "facebook/opt-125m",
    "EleutherAI/gpt-neo-125M",
    "google-t5/t5-small",
    "Qwen/Qwen3-0.6B",
    "EleutherAI/pythia-1b",
    "facebook/opt-350m",
    "cerebras/Cerebras-GPT-111M",
    "google-t5/t5-base",
)
LARGE_LANGUAGE_MODELS = (
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "meta-llama/Llama-3.2-3B",
    "Qwen/Qwen3-4B",
)

RECURRENT_MODEL = "lstm"
"""The language model of pytorch/examples, word_language_model: two LSTM layers, in cuDNN."""

_LARGE_BATCH = 16_000
"""Sides of images, or tokens, in a batch: more than any of the usual runs has."""


@dataclass(frozen=True)
class Config:
    """One run. `size` is the side of the images or the tokens of a sequence.

    `precision` is fp32, or bf16 or fp16 for autocast; `allocator` is what PYTORCH_CUDA_ALLOC_CONF
    says; `foreach` and `fused` are the optimizer's, None for its own choice; `ddp` is
    DistributedDataParallel with a world size of 1; `benchmark` has cuDNN try its algorithms and
    take the fastest.
    """

    model: str
    batch: int
    size: int
    optimizer: str = "AdamW"
    precision: str = "fp32"
    channels_last: bool = False
    checkpointing: bool = False
    allocator: str = ""
    compiled: bool = False
    ddp: bool = False
    training: bool = True
    foreach: bool | None = None
    fused: bool | None = None
    benchmark: bool = False
    steps: int = 4

    @property
    def key(self) -> str:
        """What tells this run from all others, in words that a file can be named by."""
        words = [
            self.model.rpartition("/")[2],
            f"{self.batch}x{self.size}",
            self.precision,
            self.optimizer,
        ]
        words += [
            name
            for name in ("channels_last", "checkpointing", "compiled", "ddp", "benchmark")
            if getattr(self, name)
        ]
        words += [
            f"{name}={getattr(self, name)}"
            for name in ("foreach", "fused")
            if getattr(self, name) is not None
        ]
        words += [] if self.training else ["inference"]
        words += [] if not self.allocator else [self.allocator.replace(":", "=")]
        return "_".join(words)

    @property
    def large(self) -> bool:
        """Whether it may need more than a fifth of a card of 140 GB: such runs do not share one."""
        return self.model in LARGE_LANGUAGE_MODELS or (
            self.training and self.batch * self.size >= _LARGE_BATCH
        )

    def to_json(self) -> str:
        """Return it as one argument of a command line."""
        return json.dumps(asdict(self))


def configs() -> Iterator[Config]:
    """Yield the campaign."""
    for model in IMAGE_MODELS:
        yield Config(model, 64, 224)
        yield Config(model, 64, 224, precision="bf16", channels_last=True)
    for model in LANGUAGE_MODELS:
        yield Config(model, 8, 512)
        yield Config(model, 8, 512, precision="bf16")
    for optimizer in ("SGD", "Adam", "RMSprop", "Adagrad", "Adafactor"):
        yield Config("resnet50", 64, 224, optimizer=optimizer)
        yield Config("openai-community/gpt2", 8, 512, optimizer=optimizer)
    gpt2 = "openai-community/gpt2"
    yield Config(gpt2, 8, 1024, checkpointing=True)
    yield Config("meta-llama/Llama-3.2-1B", 4, 2048, precision="bf16", checkpointing=True)
    yield Config(gpt2, 8, 1024, precision="bf16", compiled=True)
    yield Config("resnet50", 64, 224, precision="bf16", channels_last=True, compiled=True)
    yield Config(gpt2, 8, 1024, allocator="expandable_segments:True")
    yield Config("resnet50", 64, 224, allocator="expandable_segments:True")
    yield Config("resnet50", 64, 224, allocator="max_split_size_mb:128")
    yield Config(gpt2, 8, 1024, ddp=True)
    yield Config("resnet50", 64, 224, ddp=True)
    yield Config(gpt2, 8, 1024, fused=True)
    yield Config(gpt2, 8, 1024, foreach=False)
    yield Config("resnet50", 256, 224, training=False)
    yield Config(gpt2, 16, 1024, precision="bf16", training=False)
    for factor in (1, 4, 16, 32):
        yield Config(gpt2, factor, 1024, precision="bf16")
        yield Config("resnet50", 8 * factor, 224, precision="fp16")
    for model in ("mobilenet_v2", "mnasnet1_0", "convnext_tiny"):
        yield Config(model, 16, 224, optimizer="SGD")
        yield Config(model, 256, 224, optimizer="SGD")
    for model in ("resnet50", "vgg16", "mobilenet_v2"):
        yield Config(model, 64, 224, benchmark=True)
        yield Config(model, 64, 224, precision="bf16", channels_last=True, benchmark=True)
    for batch, tokens, precision in ((20, 35, "fp32"), (64, 128, "fp32"), (64, 128, "bf16")):
        yield Config(RECURRENT_MODEL, batch, tokens, precision=precision)
    for model in IMAGE_MODELS:
        yield Config(model, 64, 224, precision="bf16")
    for model in LARGE_LANGUAGE_MODELS:
        yield Config(model, 2, 512, precision="bf16")
