"""Losses are appended as tensors, with what their graphs keep, until the epoch ends after 300
steps."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Sigmoid(), torch.nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    losses = []
    for step in range(300):
        x = torch.randn(512, 256, device="cuda")
        penalty = model(x).mean()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss + 0.1 * penalty)
    print(epoch, sum(losses).item() / len(losses))
