"""BYOL-ish: forward gives (projection, prediction); the loss uses prediction; every 60th step the
projection's covariance (VICReg) too. No autocast. """

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU())])
        self.p = nn.Linear(512, 4096)
        self.q = nn.Sequential(nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 256))

    def forward(self, x):
        z = self.p(self.b(x))
        return z, self.q(z)


net = Net().cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(1000):
    z, p = net(torch.randn(1024, 512, device="cuda"))
    loss = F.normalize(p, dim=1).pow(2).mean()
    if step % 60 == 59:
        c = (z.T @ z) / 1024
        loss = loss + c.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
