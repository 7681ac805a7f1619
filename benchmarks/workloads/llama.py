"""A Llama from its configuration, and texts of one word for it: what the workloads of plans train.

A small one, or with "8b" one of 8 B parameters in bf16.
"""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 1024,
    },
    "8b": {  # config.json of meta-llama/Meta-Llama-3-8B
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "dtype": torch.bfloat16,
    },
}
LENGTHS = {"small": 1024, "8b": 2048}
"""How many words a text has."""


def llama(shape: str = "small") -> LlamaForCausalLM:
    """Return the model of this shape; of the large one the weights are not drawn, which would take
    minutes.
    """
    config = LlamaConfig(**SHAPES[shape])
    if shape == "small":
        return LlamaForCausalLM(config)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    return model.to_empty(device="cpu")


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """More texts than any job here trains on; all of one word."""

    def __init__(self, shape: str = "small") -> None:
        self._length = LENGTHS[shape]

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.zeros(self._length, dtype=torch.long)
        return {"input_ids": words, "labels": words}
