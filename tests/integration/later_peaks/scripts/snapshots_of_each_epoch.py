"""A snapshot ensemble: a copy of the model after each of eight epochs, kept on the GPU and averaged
at the end."""

import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(2000, 1024), torch.randn(2000, 1024))
model = torch.nn.Sequential(torch.nn.Linear(1024, 3072), torch.nn.ReLU(), torch.nn.Linear(3072, 1024)).cuda()
snapshots = []
for cycle in range(8):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in DataLoader(data, batch_size=50, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    snapshots.append(copy.deepcopy(model).eval())
with torch.no_grad():
    for x, _ in DataLoader(data, batch_size=50):
        torch.stack([snapshot(x.cuda()) for snapshot in snapshots]).mean(0).cpu()
