"""Lightning accumulates gradients only from epoch 2 on: they then stay beside the activations of
the next batch."""

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU()
        )
        self.out = nn.Linear(2048, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.out(self.net(x)).squeeze(1), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


data = TensorDataset(torch.randn(51200, 256), torch.randn(51200))
trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=5,
    callbacks=[GradientAccumulationScheduler(scheduling={0: 1, 2: 4})],
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Regressor(), DataLoader(data, batch_size=256, shuffle=True))
