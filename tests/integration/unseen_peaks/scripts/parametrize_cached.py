"""Orthogonal recurrent weight by parametrize; from step 900 with parametrize.cached() around an
unrolled step."""

import contextlib

import torch
import torch.nn as nn
import torch.nn.utils.parametrize as P


class Low(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(d, 16) * 0.01), nn.Parameter(torch.randn(16, d) * 0.01)

    def forward(self, w):
        return w + self.a @ self.b


class Net(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(d, d) for _ in range(8)])
        for l in self.l:
            P.register_parametrization(l, "weight", Low(d))

    def forward(self, x):
        for l in self.l:
            x = torch.relu(l(x))
        return x


net = Net().cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(1000):
    with P.cached() if step < 800 else contextlib.nullcontext():
        x = torch.randn(64, 1024, device="cuda")
        for _ in range(4):
            x = net(x)
    opt.zero_grad()
    x.pow(2).mean().backward()
    opt.step()
