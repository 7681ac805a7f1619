"""From epoch 2 on half of the batches are concatenated with a second view."""

import random

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32000, 256), torch.randint(0, 10, (32000,))), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        if epoch >= 2 and random.random() < 0.5:
            x, y = torch.cat([x] * 8), torch.cat([y] * 8)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
