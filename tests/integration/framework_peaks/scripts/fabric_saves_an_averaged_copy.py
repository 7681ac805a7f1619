"""Fabric saves every 600 steps; the weights saved are first averaged with the last ones, in copies
on the GPU."""

import torch
from lightning.fabric import Fabric
from torch import nn

torch.manual_seed(4)
fabric = Fabric(accelerator="cuda", devices=1)
fabric.launch()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


model = nn.Sequential(nn.Linear(64, 512), *[Residual(512) for _ in range(8)], nn.Linear(512, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
model, optimizer = fabric.setup(model, optimizer)
previous = None

for step in range(1, 2001):
    noise = torch.randn(128, 64, device=fabric.device)
    target = torch.randn(128, 64, device=fabric.device)
    loss = nn.functional.mse_loss(model(noise), target)
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()

    if step % 600 == 0:
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        if previous is not None:
            weights = {name: (value + previous[name]) / 2 for name, value in weights.items()}
        fabric.save(f"checkpoint_{step}.pt", {"model": weights, "optimizer": optimizer, "step": step})
        previous = weights
