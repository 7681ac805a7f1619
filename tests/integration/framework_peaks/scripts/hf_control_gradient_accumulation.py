"""Llama with gradient accumulation over 4 batches and clipping; nothing else. Peaks in the first
steps."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Corpus(torch.utils.data.Dataset):
    def __init__(self, sequences, length):
        self.tokens = torch.randint(0, 8000, (sequences, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


config = LlamaConfig(
    vocab_size=8000,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir="llama",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_grad_norm=1.0,
        save_strategy="no",
        logging_steps=20,
    ),
    train_dataset=Corpus(2400, 128),
)
trainer.train()
