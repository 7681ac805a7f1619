"""Masked language modelling in bf16 with gradient checkpointing; every batch is padded to 128.
Peaks at once."""

import random

import torch
from transformers import RobertaConfig, RobertaForMaskedLM, Trainer, TrainingArguments

random.seed(1)
PAD, MASK, VOCAB, LENGTH = 1, 4, 6000, 128


class Lines(torch.utils.data.Dataset):
    def __init__(self, count):
        self.lines = [[random.randrange(5, VOCAB) for _ in range(random.randint(20, 120))] for _ in range(count)]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        line = self.lines[index]
        return {"input_ids": line, "attention_mask": [1] * len(line)}


def collate(features):
    ids = torch.full((len(features), LENGTH), PAD)
    mask = torch.zeros(len(features), LENGTH, dtype=torch.long)
    for row, feature in enumerate(features):
        n = len(feature["input_ids"])
        ids[row, :n] = torch.tensor(feature["input_ids"])
        mask[row, :n] = 1
    labels = ids.clone()
    masked = (torch.rand(ids.shape) < 0.15) & mask.bool()
    labels[~masked] = -100
    ids[masked] = MASK
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


config = RobertaConfig(
    vocab_size=VOCAB,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=160,
)
args = TrainingArguments(
    output_dir="mlm",
    max_steps=500,
    per_device_train_batch_size=16,
    bf16=True,
    gradient_checkpointing=True,
    learning_rate=1e-4,
    save_strategy="no",
)
Trainer(model=RobertaForMaskedLM(config), args=args, train_dataset=Lines(5000), data_collator=collate).train()
