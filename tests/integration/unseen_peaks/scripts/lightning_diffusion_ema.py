"""Lightning: DDPM with an EMA callback; samples of 64 images every 400 steps from the averaged
copy, with CFG. """

import copy

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(nn.Module):
    def __init__(self, d=768):
        super().__init__()
        self.t = nn.Embedding(1000, 256)
        self.net = nn.Sequential(
            nn.Linear(d + 256, 1024), nn.SiLU(), nn.Linear(1024, 1024), nn.SiLU(), nn.Linear(1024, d)
        )

    def forward(self, x, t):
        return self.net(torch.cat([x, self.t(t)], 1))


class DDPM(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        self.register_buffer("ab", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def training_step(self, batch, i):
        (x,) = batch
        t = torch.randint(0, 1000, (len(x),), device=self.device)
        a, e = self.ab[t][:, None], torch.randn_like(x)
        loss = (self.net(a.sqrt() * x + (1 - a).sqrt() * e, t) - e).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class EMAAndSamples(L.Callback):
    def on_fit_start(self, trainer, module):
        self.ema = copy.deepcopy(module.net).requires_grad_(False)

    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        for a, b in zip(self.ema.parameters(), module.net.parameters()):
            a.data.lerp_(b.data, 1e-3)
        if trainer.global_step % 400 == 0:
            self.sample(module)

    @torch.no_grad()
    def sample(self, module, n=1024):
        x = torch.randn(n, 768, device=module.device)
        frames = []
        for t in range(999, 0, -25):
            tt = torch.full((2 * n,), t, device=module.device)
            c, u = self.ema(torch.cat([x, x]), tt).chunk(2)
            e = u + 3 * (c - u)
            x = (x - 0.1 * e) + 0.1 * torch.randn_like(x)
            frames.append(x)
        return torch.stack(frames)


loader = DataLoader(TensorDataset(torch.randn(12800, 768)), batch_size=64, shuffle=True)
L.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[EMAAndSamples()],
).fit(DDPM(), loader)
