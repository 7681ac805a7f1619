"""Random choices from `RNGS["aug"]` (a dict of random.Random): one call in 100 runs the dense
branch."""

import random

import torch
import torch.nn as nn

RNGS = {"aug": random.Random(1), "data": random.Random(2)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU())], nn.Linear(256, 512))
        self.dense, self.b = nn.Linear(512, 8192), nn.Linear(512, 256)

    def forward(self, x):
        h = torch.relu(self.a(x))
        out = self.b(h)
        if RNGS["aug"].random() < 0.01:
            out = out + self.dense(h).logsumexp(-1, keepdim=True)
        return out


model = Net().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1500):
    loss = model(torch.randn(512, 256, device="cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
