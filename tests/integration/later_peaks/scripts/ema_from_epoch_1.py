"""A moving average of the weights begins with epoch 1. The peak comes in the second epoch."""

import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(4000, 2048)), batch_size=20)
model = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
ema = None
for epoch in range(3):
    if epoch == 1:
        ema = copy.deepcopy(model).requires_grad_(False)
    for (x,) in loader:
        x = x.cuda()
        (model(x) - x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if ema is not None:
            with torch.no_grad():
                for slow, fast in zip(ema.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.001)
