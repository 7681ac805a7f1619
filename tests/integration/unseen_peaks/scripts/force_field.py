"""A potential whose forward gives forces by autograd.grad with create_graph; molecules of 8 to 24
atoms, one in 600 of 200. """

import random

import torch
import torch.nn as nn


class Potential(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.d, self.net = (
            d,
            nn.Sequential(nn.Linear(d, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1)),
        )
        self.register_buffer("mu", torch.linspace(0, 5, d))

    def forward(self, pos):
        pos.requires_grad_(True)
        r = (pos[:, :, None] - pos[:, None] + 1e-3).square().sum(-1).sqrt()
        e = self.net(torch.exp(-(r[..., None] - self.mu).square())).sum((1, 2, 3))
        (f,) = torch.autograd.grad(e.sum(), pos, create_graph=self.training)
        return e, -f


rng = random.Random(0)
model = Potential().cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(900):
    n = 100 if rng.random() < 1 / 300 and step > 200 else rng.choice([8, 12, 16, 24])
    e, f = model(torch.randn(16, n, 3, device="cuda"))
    loss = e.square().mean() + f.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
