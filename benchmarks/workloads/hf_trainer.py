"""A small Llama, from its configuration, trained by transformers' Trainer, its arguments from the
command line.
"""

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH, WORDS = 1024, 32000


class Texts(torch.utils.data.Dataset):
    """As many texts as a Trainer needs for its steps; all of one word."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.zeros(LENGTH, dtype=torch.long)
        return {"input_ids": words, "labels": words}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    shape = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=LENGTH,
    )
    Trainer(model=LlamaForCausalLM(shape), args=arguments, train_dataset=Texts()).train()


main()
