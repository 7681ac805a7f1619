"""Train until the hour that the job has is over, evaluating with a larger batch every ten
minutes."""

import time

import torch

HOUR = 3600
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
started = evaluated = time.time()
while time.time() - started < HOUR:
    x = torch.randn(64, 512, device="cuda")
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if time.time() - evaluated > HOUR / 6:
        evaluated = time.time()
        with torch.no_grad():
            x = torch.randn(20_000, 512, device="cuda")
            print(f"{(model(x) - x).square().mean().item():.4f}")
