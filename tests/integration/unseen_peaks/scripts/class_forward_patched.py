"""A class's forward is replaced late (as efficient-attention patches do)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(256, 256) for _ in range(8)])

    def forward(self, x):
        for l in self.l:
            x = F.gelu(l(x))
        return x


def slow_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))


def forward2(self, x):
    for l in self.l:
        x = slow_gelu(l(x))
    return x


net = Net().cuda()
for step in range(120):
    if step == 100:
        Net.forward = forward2
    net.zero_grad()
    net(torch.randn(4096, 256, device="cuda")).pow(2).mean().backward()
