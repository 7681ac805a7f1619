"""Callbacks: one unfreezes the backbone at epoch 3."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_epoch_start(self, trainer, epoch):
        pass


class Log(Callback):
    def on_epoch_start(self, trainer, epoch):
        print("epoch", epoch)


class Unfreeze(Callback):
    def __init__(self, at):
        self.at = at

    def on_epoch_start(self, trainer, epoch):
        if epoch == self.at:
            for p in trainer.model[0].parameters():
                p.requires_grad_(True)
            trainer.optimizer.add_param_group({"params": list(trainer.model[0].parameters()), "lr": 1e-5})


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        for p in model[0].parameters():
            p.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(model[1].parameters())

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for callback in self.callbacks:
                callback.on_epoch_start(self, epoch)
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


data = TensorDataset(torch.randn(32000, 512), torch.randint(0, 5, (32000,)))
backbone = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())])
model = torch.nn.Sequential(backbone, torch.nn.Linear(512, 5)).cuda()
Trainer(model, [Log(), Unfreeze(3)]).fit(DataLoader(data, batch_size=32, shuffle=True), 6)
