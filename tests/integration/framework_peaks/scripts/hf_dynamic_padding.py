"""Texts of random lengths, each batch padded to its longest: the longest batch comes when it is
drawn."""

import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(13)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self.texts = [torch.randint(1, 4000, (int(min(400, random.lognormvariate(4, 0.7)) + 4),)) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i]


def collate(texts):
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=4000, n_positions=512, n_embd=128, n_layer=2, n_head=4)),
    args=TrainingArguments(
        "padded",
        per_device_train_batch_size=8,
        num_train_epochs=1,
        save_strategy="no",
        remove_unused_columns=False,
    ),
    train_dataset=Texts(4000),
    data_collator=collate,
)
trainer.train()
