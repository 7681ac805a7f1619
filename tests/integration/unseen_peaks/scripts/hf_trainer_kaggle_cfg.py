"""transformers' Trainer; a model of one's own whose forward reads a class CFG that a callback
changes at epoch 2 (R-Drop). """

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments


class CFG:
    rdrop = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(256, 2048),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(2048, 2048),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(2048, 10),
        )

    def forward(self, x=None, labels=None):
        if CFG.rdrop and self.training:
            a, b = self.net(x), self.net(x)
            kl = F.kl_div(a.log_softmax(-1), b.log_softmax(-1), log_target=True, reduction="batchmean")
            return {"loss": F.cross_entropy(a, labels) + F.cross_entropy(b, labels) + kl, "logits": a}
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Switch(TrainerCallback):
    def on_epoch_begin(self, args, state, control, **kw):
        CFG.rdrop = state.epoch >= 2


data = [{"x": torch.randn(256), "labels": i % 10} for i in range(12800)]
args = TrainingArguments(
    "out",
    per_device_train_batch_size=256,
    num_train_epochs=4,
    report_to=[],
    save_strategy="no",
    logging_steps=50,
    disable_tqdm=True,
)
Trainer(Net(), args, train_dataset=data, callbacks=[Switch()]).train()
