"""Lightning validates every 500 batches in batches sixteen times as large, without the sanity check
at the start."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Windows of a synthetic multivariate series."""

    def __init__(self, steps, length=96, features=32):
        self.series = torch.randn(steps, features)
        self.length = length

    def __len__(self):
        return len(self.series) - self.length - 1

    def __getitem__(self, i):
        return self.series[i : i + self.length], self.series[i + self.length]


class Forecaster(pl.LightningModule):
    def __init__(self, features=32, width=256):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.mix = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(3)
        )
        self.out = nn.Linear(width, features)

    def forward(self, x):
        x = self.inp(x)
        for block in self.mix:
            x = x + block(x)
        return self.out(x.mean(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train/mse", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/mse", nn.functional.mse_loss(self(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.seed_everything(0)
trainer = pl.Trainer(
    accelerator="gpu",
    devices=1,
    max_steps=2000,
    val_check_interval=500,
    check_val_every_n_epoch=None,
    num_sanity_val_steps=0,
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(
    Forecaster(),
    DataLoader(Windows(40_000), batch_size=32, shuffle=True),
    DataLoader(Windows(4_000), batch_size=512),
)
