"""Trained for 1500 steps without evaluation; then trainer.evaluate() in batches four times as large
is the peak."""

import math

import torch
from datasets import Dataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(7)


def blocks(count):
    rows = torch.randint(0, 7000, (count, 64)).tolist()
    return Dataset.from_dict({"input_ids": rows, "labels": rows})


config = GPTNeoXConfig(
    vocab_size=7000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=128,
)
args = TrainingArguments(
    output_dir="neox",
    per_device_train_batch_size=16,
    per_device_eval_batch_size=128,
    num_train_epochs=2,
    save_strategy="epoch",
    save_total_limit=2,
    prediction_loss_only=True,
)
trainer = Trainer(model=GPTNeoXForCausalLM(config), args=args, train_dataset=blocks(12000), eval_dataset=blocks(1000))
trainer.train()
metrics = trainer.evaluate()
metrics["perplexity"] = math.exp(metrics["eval_loss"])
trainer.log_metrics("eval", metrics)
trainer.save_metrics("eval", metrics)
