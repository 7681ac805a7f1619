"""One evaluation, after 30,000 cheap steps: seen only by who runs them all."""

import torch

STEPS = 30_000
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, STEPS + 1):
    x = torch.randn(64, 256, device="cuda")
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % STEPS == 0:
        model.eval()
        with torch.no_grad():
            x = torch.randn(100_000, 256, device="cuda")
            print((model(x) - x).square().mean().item())
