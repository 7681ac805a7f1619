"""Llama 8B from its configuration, trained in bf16 by transformers' Trainer on sequences of 2048,
its arguments from the command line.
"""

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH, WORDS = 2048, 128256


class Texts(torch.utils.data.Dataset):
    """As many texts as a Trainer needs for its steps; all of one word."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.zeros(LENGTH, dtype=torch.long)
        return {"input_ids": words, "labels": words}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    shape = LlamaConfig(  # config.json of meta-llama/Meta-Llama-3-8B
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=WORDS,
        max_position_embeddings=8192,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(shape)
    model.to_empty(device="cpu")
    Trainer(model=model, args=arguments, train_dataset=Texts()).train()


main()
