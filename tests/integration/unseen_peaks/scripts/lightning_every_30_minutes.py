"""Lightning: a callback evaluates a large test set each 30 minutes by the clock; max_epochs would
take hours on a GPU. """

import os
import time

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

SECONDS = float(os.environ.get("EVERY", 1800))


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))

    def training_step(self, batch, i):
        return (self.net(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Timed(L.Callback):
    def on_train_start(self, trainer, module):
        self.last = time.monotonic()

    def on_train_batch_end(self, trainer, module, *_):
        if time.monotonic() - self.last >= SECONDS:
            self.last = time.monotonic()
            with torch.no_grad():
                outs = [module.net(torch.randn(2048, 512, device=module.device)) for _ in range(30)]
                print(torch.cat(outs).std())


loader = DataLoader(TensorDataset(torch.randn(12800, 512)), batch_size=64, shuffle=True)
L.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Timed()],
).fit(Lit(), loader)
