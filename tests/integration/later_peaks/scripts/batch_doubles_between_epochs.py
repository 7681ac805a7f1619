"""`batch *= 2` after each epoch, of which there are five."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
batch = 64
for epoch in range(5):
    for _ in range(3000):
        x = torch.randn(batch, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batch *= 2
