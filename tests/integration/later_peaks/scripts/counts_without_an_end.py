"""itertools.count() and a return; the second loss comes at step 4000."""

import itertools

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in itertools.count(1):
    x = torch.randn(128, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    if step >= 4000:
        loss = loss + (model(x + 0.1) - model(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 8000:
        break
