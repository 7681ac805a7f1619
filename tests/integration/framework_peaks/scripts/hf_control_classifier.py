"""A BERT classifier by transformers' Trainer, evaluated after each epoch with the same batch.
Training is the peak."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(42)


class Reviews(torch.utils.data.Dataset):
    def __init__(self, size):
        self.ids = torch.randint(5, 8000, (size, 128))
        self.labels = torch.randint(0, 4, (size,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones(128, dtype=torch.long),
            "labels": self.labels[i],
        }


def compute_metrics(prediction):
    return {"accuracy": (np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean()}


config = BertConfig(
    vocab_size=8000,
    hidden_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=1024,
    num_labels=4,
)
model = BertForSequenceClassification(config)
args = TrainingArguments(
    output_dir="out",
    num_train_epochs=3,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    eval_strategy="epoch",
    save_strategy="no",
    learning_rate=2e-5,
    logging_steps=50,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Reviews(3200),
    eval_dataset=Reviews(320),
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.evaluate())
