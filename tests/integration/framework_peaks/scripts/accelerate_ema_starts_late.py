"""A diffusion model by accelerate; its averaged weights begin at step 1200 as a copy of the
model."""

from copy import deepcopy

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


class Denoiser(nn.Module):
    def __init__(self, dim=256, hidden=1024, depth=6):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, hidden), nn.SiLU())
        self.inp, self.out = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))

    def forward(self, x, t):
        h = self.inp(x) + self.time(t[:, None])
        for layer in self.layers:
            h = h + torch.nn.functional.silu(layer(h))
        return self.out(h)


ema_start, ema_decay, max_train_steps = 1200, 0.9999, 2000
accelerator = Accelerator()
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
dataloader = DataLoader(TensorDataset(torch.randn(16_000, 256)), batch_size=64, shuffle=True, drop_last=True)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
ema_model = None
progress = tqdm(total=max_train_steps, mininterval=10)
global_step = 0
while global_step < max_train_steps:
    for (clean,) in dataloader:
        t = torch.rand(len(clean), device=accelerator.device)
        noise = torch.randn_like(clean)
        noisy = torch.sqrt(1 - t)[:, None] * clean + torch.sqrt(t)[:, None] * noise
        loss = nn.functional.mse_loss(model(noisy, t), noise)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        global_step += 1
        progress.update(1)
        if global_step == ema_start:
            ema_model = deepcopy(accelerator.unwrap_model(model)).requires_grad_(False)
        elif ema_model is not None:
            with torch.no_grad():
                for e, p in zip(ema_model.parameters(), model.parameters()):
                    e.mul_(ema_decay).add_(p, alpha=1 - ema_decay)
        if global_step == max_train_steps:
            break
accelerator.save(ema_model.state_dict(), "ema.pt")
