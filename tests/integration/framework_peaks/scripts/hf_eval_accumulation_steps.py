"""Logits of the evaluation go to the CPU every 25 batches (eval_accumulation_steps): just before it
is the peak."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCAB = 2000


class Text(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = torch.randint(0, VOCAB, (rows, 64))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def compute_metrics(eval_prediction):
    logits, labels = eval_prediction
    return {"accuracy": (logits[:, :-1].argmax(-1) == labels[:, 1:]).mean().item()}


training_args = TrainingArguments(
    output_dir="lm",
    max_steps=900,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    eval_strategy="steps",
    eval_steps=300,
    eval_accumulation_steps=25,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=128, n_layer=3, n_head=4)),
    args=training_args,
    train_dataset=Text(8000),
    eval_dataset=Text(640),
    compute_metrics=compute_metrics,
)
trainer.train()
