"""Token classification with compute_metrics: an evaluation keeps all logits on the GPU until its
end."""

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForTokenClassification, Trainer, TrainingArguments

TAGS = 90


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n
        self.tokens = torch.randint(1, 5000, (n, 128))
        self.tags = torch.randint(0, TAGS, (n, 128))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {
            "input_ids": self.tokens[i],
            "attention_mask": torch.ones_like(self.tokens[i]),
            "labels": self.tags[i],
        }


def accuracy(p):
    predicted = np.argmax(p.predictions, axis=2)
    keep = p.label_ids != -100
    return {"accuracy": float((predicted == p.label_ids)[keep].mean())}


model = DistilBertForTokenClassification(
    DistilBertConfig(vocab_size=5000, dim=128, n_layers=3, n_heads=4, hidden_dim=512, num_labels=TAGS)
)
args = TrainingArguments(
    output_dir="ner",
    eval_strategy="epoch",
    save_strategy="no",
    per_device_train_batch_size=16,
    per_device_eval_batch_size=32,
    num_train_epochs=3,
    weight_decay=0.01,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Sentences(6400),
    eval_dataset=Sentences(4000),
    compute_metrics=accuracy,
)
trainer.train()
