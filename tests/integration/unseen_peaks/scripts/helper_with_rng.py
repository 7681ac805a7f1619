"""Mixup within the model by a plain helper object with a numpy generator of its own: one call in
100 mixes four times as many. """

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SpecMix:
    def __init__(self, p=0.01, seed=7):
        self.p, self.rng = p, np.random.default_rng(seed)

    def __call__(self, h):
        if self.rng.random() < self.p:
            parts = [h.roll(i, 0) * 0.5 + h * 0.5 for i in range(1, 5)]
            return torch.cat([h, *parts])
        return h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = SpecMix()
        self.a = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU())], nn.Linear(256, 1024))
        self.b = nn.Linear(1024, 1024)

    def forward(self, x):
        return self.b(F.relu(self.mix(self.a(x))))


model = Net().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1500):
    loss = model(torch.randn(256, 256, device="cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
