"""A Llama, from its configuration, trained by transformers' Trainer, its arguments from the command
line; a small one, or with `--shape 8b` one of 8 B parameters in bf16.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

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


@dataclass
class Model:
    """Which one is trained."""

    shape: str = "small"


class Texts(torch.utils.data.Dataset):
    """As many texts as a Trainer needs for its steps; all of one word."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.zeros(self.length, dtype=torch.long)
        return {"input_ids": words, "labels": words}


def main() -> None:
    wanted, arguments = HfArgumentParser((Model, TrainingArguments)).parse_args_into_dataclasses()
    shape = LlamaConfig(**SHAPES[wanted.shape])
    if wanted.shape == "small":
        model = LlamaForCausalLM(shape)
    else:  # to draw its weights would take minutes
        with torch.device("meta"):
            model = LlamaForCausalLM(shape)
        model.to_empty(device="cpu")
    Trainer(model=model, args=arguments, train_dataset=Texts(LENGTHS[wanted.shape])).train()


main()
