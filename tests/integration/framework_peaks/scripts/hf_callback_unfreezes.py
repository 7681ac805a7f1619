"""A callback freezes the encoder at the start and thaws it after the first of three epochs. The
peak comes then."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Warmup(TrainerCallback):
    """Train only the head for some epochs."""

    def __init__(self, epochs):
        self.epochs = epochs

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model.bert.requires_grad_(False)

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        if round(state.epoch or 0) == self.epochs:
            print("unfreezing the encoder")
            model.bert.requires_grad_(True)


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randint(1, 6000, (4000, 96))
        self.y = torch.randint(0, 2, (4000,))

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "labels": self.y[i]}


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=6000,
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=1536,
    )
)
args = TrainingArguments(
    output_dir="frozen_first", per_device_train_batch_size=16, num_train_epochs=3, save_strategy="no", seed=11
)
Trainer(model=model, args=args, train_dataset=Data(), callbacks=[Warmup(1)]).train()
