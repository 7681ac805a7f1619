"""A model of LLMem's table 3, from its configuration, fine-tuned by transformers' Trainer on samples
of 512 tokens; the Trainer's arguments come from the command line.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer
from transformers import TrainingArguments as Arguments

TOKENS = 512
"""Of one sample, as in the paper."""

SHAPES: dict[str, dict[str, Any]] = {  # each model's config.json on Hugging Face
    "OPT-1.3b": {
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": 2048,
        "word_embed_proj_dim": 2048,
        "ffn_dim": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "OPT-2.7b": {
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": 2560,
        "word_embed_proj_dim": 2560,
        "ffn_dim": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "bloom-1b1": {
        "model_type": "bloom",
        "vocab_size": 250880,
        "hidden_size": 1536,
        "n_layer": 24,
        "n_head": 16,
    },
    "bloom-3b": {
        "model_type": "bloom",
        "vocab_size": 250880,
        "hidden_size": 2560,
        "n_layer": 30,
        "n_head": 32,
    },
    "BioGPT-Large": {
        "model_type": "biogpt",
        "vocab_size": 57717,
        "hidden_size": 1600,
        "intermediate_size": 6400,
        "num_hidden_layers": 48,
        "num_attention_heads": 25,
        "max_position_embeddings": 2048,
    },
    "codegen-2B": {
        "model_type": "codegen",
        "vocab_size": 51200,
        "n_positions": 2048,
        "n_embd": 2560,
        "n_layer": 32,
        "n_head": 32,
        "rotary_dim": 64,
    },
    "gpt_bigcode-1.1B": {  # bigcode/gpt_bigcode-santacoder
        "model_type": "gpt_bigcode",
        "vocab_size": 49280,
        "n_positions": 2048,
        "n_embd": 2048,
        "n_inner": 8192,
        "n_layer": 24,
        "n_head": 16,
    },
    "gpt-neo-1.3B": {
        "model_type": "gpt_neo",
        "vocab_size": 50257,
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "attention_types": [[["global", "local"], 12]],
        "max_position_embeddings": 2048,
    },
    "llama-7b": {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
}


@dataclass
class Model:
    """Which one is trained."""

    model: str


class Samples(torch.utils.data.Dataset):
    """As many as a Trainer needs for its steps; all of one word."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.zeros(TOKENS, dtype=torch.long)
        return {"input_ids": words, "labels": words}


def main() -> None:
    wanted, arguments = HfArgumentParser((Model, Arguments)).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SHAPES[wanted.model]))
    Trainer(model=model, args=arguments, train_dataset=Samples()).train()


main()
