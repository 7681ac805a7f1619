"""Early stopping after three epochs without progress, then a refit on all data with a larger
batch."""

import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

train, valid = (TensorDataset(torch.randn(n, 256), torch.randn(n, 1)) for n in (3200, 320))
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())


def epoch_over(data, batch_size):
    model.train()
    for x, y in DataLoader(data, batch_size=batch_size, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()


best, waited = float("inf"), 0
for epoch in range(100):
    epoch_over(train, 32)
    model.eval()
    with torch.no_grad():
        losses = [torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).item() for x, y in DataLoader(valid, 32)]
    mean = sum(losses) / len(losses)
    best, waited = (mean, 0) if mean < best else (best, waited + 1)
    if waited >= 3:
        break
for epoch in range(2):
    epoch_over(ConcatDataset([train, valid]), 1024)
