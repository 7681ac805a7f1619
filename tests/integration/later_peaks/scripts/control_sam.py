"""Sharpness-aware minimisation: two passes a step, the same in each step."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
rho = 0.05
for step in range(500):
    x = torch.randn(256, 1024, device="cuda")
    model(x).pow(2).mean().backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
        moved = [p.grad * (rho / norm) for p in model.parameters()]
        for p, e in zip(model.parameters(), moved, strict=True):
            p.add_(e)
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), moved, strict=True):
            p.sub_(e)
    optimizer.step()
    optimizer.zero_grad()
