"""Warm restart: `optimizer.state[p].clear()` each epoch; the last epoch has a larger batch."""

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
opt = torch.optim.Adam(model.parameters())
for epoch in range(5):
    for p in list(opt.state):
        opt.state[p].clear()
    for _ in range(150):
        x = torch.randn(64 if epoch < 4 else 4096, 2048, device="cuda")
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
