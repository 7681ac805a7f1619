"""Language modelling evaluated every 400 steps in batches of 64, trained in batches of 8.
Evaluation is the peak."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Blocks(torch.utils.data.Dataset):
    def __init__(self, size, block=96):
        self.data = torch.randint(0, 5000, (size, block))

    def __len__(self):
        return self.data.shape[0]

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=5000, n_positions=128, n_embd=192, n_layer=2, n_head=4))
args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=64,
    max_steps=1200,
    eval_strategy="steps",
    eval_steps=400,
    prediction_loss_only=True,
    save_strategy="no",
    learning_rate=5e-4,
    warmup_steps=50,
)
trainer = Trainer(model, args, train_dataset=Blocks(6400), eval_dataset=Blocks(256))
trainer.train()
