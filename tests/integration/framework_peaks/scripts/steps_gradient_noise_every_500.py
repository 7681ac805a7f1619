"""A plain loop measures the gradient noise every 500 steps: the gradients of 16 micro-batches, kept
side by side."""

import torch
from torch import nn

WIDTH = 512
model = nn.Sequential(
    nn.Linear(128, WIDTH), nn.ReLU(), *[m for _ in range(6) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
)
model = nn.Sequential(model, nn.Linear(WIDTH, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(size):
    return torch.randn(size, 128).cuda(), torch.randn(size, 1).cuda()


def gradient_noise():
    flat = []
    for _ in range(16):
        x, y = batch(32)
        gradients = torch.autograd.grad(nn.functional.mse_loss(model(x), y), model.parameters())
        flat.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(flat).var(dim=0).sum().item()


global_step = 0
while True:
    x, y = batch(512)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    global_step += 1
    if global_step % 500 == 0:
        print(global_step, loss.item(), gradient_noise())
    if global_step >= 4000:
        break
