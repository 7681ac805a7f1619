"""Batches of like lengths (group_by_length) with dynamic padding: the largest is the first, but has
no states yet."""

import random

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

random.seed(3)
lengths = [random.randint(10, 60) if random.random() < 0.9 else random.randint(60, 384) for _ in range(4800)]
rows = [[random.randrange(5, 4000) for _ in range(n)] for n in lengths]
dataset = Dataset.from_dict({"input_ids": rows, "label": [i % 3 for i in range(4800)], "length": lengths})


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.tensor([f["input_ids"] + [0] * (longest - len(f["input_ids"])) for f in features])
    labels = torch.tensor([f["label"] for f in features])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


config = BertConfig(
    vocab_size=4000,
    hidden_size=192,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=768,
    num_labels=3,
)
args = TrainingArguments(
    output_dir="grouped",
    train_sampling_strategy="group_by_length",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    save_strategy="no",
)
Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=dataset, data_collator=collate).train()
