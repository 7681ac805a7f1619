"""DDPM: EMA, sampling 50 steps of 512 images every 3rd epoch keeping all intermediates, from epoch
2 with classifier- free guidance. """

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Eps(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.c = nn.Embedding(50, 256), nn.Embedding(11, 256)
        self.i, self.o = nn.Linear(784, 256), nn.Linear(256, 784)
        self.b = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 256)) for _ in range(4)]
        )

    def forward(self, x, t, c):
        h = self.i(x) + self.t(t) + self.c(c)
        for b in self.b:
            h = h + b(h)
        return self.o(h)


net = Eps().cuda()
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters())
a = torch.linspace(0.99, 0.01, 50).cuda()
loader = DataLoader(
    TensorDataset(torch.randn(12800, 784), torch.randint(0, 10, (12800,))), batch_size=128, shuffle=True
)


@torch.no_grad()
def sample(n, w):
    x, c, kept = torch.randn(n, 784, device="cuda"), torch.arange(n, device="cuda") % 10, []
    for t in reversed(range(50)):
        tt = torch.full((n,), t, device="cuda")
        e = ema(x, tt, c)
        if w:
            e = (1 + w) * e - w * ema(x, tt, torch.full_like(c, 10))
        x = (x - (1 - a[t]) * e) / a[t].sqrt()
        kept.append(x.clamp(-1, 1))
    return torch.stack(kept)


for epoch in range(10):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        t = torch.randint(0, 50, (len(x),), device="cuda")
        n = torch.randn_like(x)
        y = torch.where(torch.rand(len(y), device="cuda") < 0.1, 10, y)
        loss = F.mse_loss(net(a[t, None].sqrt() * x + (1 - a[t, None]).sqrt() * n, t, y), n)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            [e.lerp_(p, 0.01) for e, p in zip(ema.parameters(), net.parameters())]
    if epoch % 3 == 2:
        print(sample(512, 2.0 if epoch > 2 else 0).shape)
