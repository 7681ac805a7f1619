"""A sweep in one script: widths 256 to 4,096, one after another. The last one is the peak."""

import itertools

import torch


def run(width, lr, steps=60):
    model = torch.nn.Sequential(torch.nn.Linear(512, width), torch.nn.ReLU(), torch.nn.Linear(width, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x = torch.randn(1024, 512, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


results = {}
for width, lr in itertools.product([256, 1024, 4096], [1e-2, 1e-3, 1e-4]):
    results[width, lr] = run(width, lr)
print(min(results, key=results.get))
