"""Activations are checkpointed for the first 300 steps, while the long samples come, then no
more."""

import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    checkpointing = True

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512))
            for _ in range(4)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x))
        return x


net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(500):
    net.checkpointing = step < 300
    x = torch.randn(4096, 512, device="cuda")
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
