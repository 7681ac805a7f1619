"""An autoencoder by Lightning's manual optimization; its discriminator and second optimizer join at
step 1000."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def mlp(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, outputs)
    )


class VQGan(L.LightningModule):
    def __init__(self, disc_start=1000, pixels=768):
        super().__init__()
        self.automatic_optimization = False
        self.encoder, self.decoder = mlp(pixels, 1024, 64), mlp(64, 1024, pixels)
        self.discriminator = mlp(pixels, 2048, 1)
        self.disc_start = disc_start
        self.seen = 0

    def training_step(self, batch, batch_idx):
        (x,) = batch
        opt_g, opt_d = self.optimizers()
        with_gan = self.seen >= self.disc_start
        self.seen += 1

        fake = self.decoder(self.encoder(x))
        loss = F.l1_loss(fake, x)
        if with_gan:
            loss = loss - 0.1 * self.discriminator(fake).mean()
        opt_g.zero_grad()
        self.manual_backward(loss)
        opt_g.step()
        self.log("g", loss)

        if with_gan:
            d = F.relu(1 - self.discriminator(x)).mean() + F.relu(1 + self.discriminator(fake.detach())).mean()
            opt_d.zero_grad()
            self.manual_backward(d)
            opt_d.step()
            self.log("d", d)

    def configure_optimizers(self):
        autoencoder = [*self.encoder.parameters(), *self.decoder.parameters()]
        return [
            torch.optim.Adam(autoencoder, lr=1e-4, betas=(0.5, 0.9)),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-4, betas=(0.5, 0.9)),
        ]


loader = DataLoader(TensorDataset(torch.rand(20_000, 768)), batch_size=128, shuffle=True, drop_last=True)
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=10, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(VQGan(), loader)
