"""LayerDrop with a generator of its own for each layer, kept in a list (reproducible): seldom are
all layers kept. """

import random

import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, d=256, n=8, p=0.4, seed=0):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)
        )
        self.rngs = [random.Random(seed + i) for i in range(n)]
        self.p = p

    def forward(self, x):
        for layer, rng in zip(self.layers, self.rngs):
            if self.training and rng.random() < self.p:
                continue
            x = x + layer(x)
        return x


model = Encoder().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(1500):
    x = torch.randn(1024, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
