"""A Python function with a static counter (an attribute of itself): from call 600 on forward
computes an extra loss term. """

import torch
import torch.nn as nn


def warm():
    warm.calls += 1
    return warm.calls > 600


warm.calls = 0


class AE(nn.Module):
    def __init__(self, d=784):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 512), nn.ReLU(), nn.Linear(512, 64))
        self.dec = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, d))

    def forward(self, x):
        z = self.enc(x)
        loss = (self.dec(z) - x).square().mean()
        if warm():
            dist = torch.cdist(z, z)
            pair = (z[:, None] - z[None]).square().sum(-1)
            loss = loss + 0.01 * (dist * pair).mean()
        return loss


model = AE().cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(1000):
    loss = model(torch.randn(512, 784, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
