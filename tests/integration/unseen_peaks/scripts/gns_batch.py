"""The batch follows the gradient noise scale, measured every 100 steps and clamped to 32..2048 (it
rises to the most on real data). """

import torch
import torch.nn as nn
import torch.nn.functional as F

net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(512, 512), nn.GELU())], nn.Linear(512, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
batch = 32


def norm2(n):
    net.zero_grad()
    F.cross_entropy(net(torch.randn(n, 512, device="cuda")), torch.randint(0, 10, (n,)).cuda()).backward()
    return sum(p.grad.pow(2).sum() for p in net.parameters()).item()


for step in range(800):
    loss = F.cross_entropy(net(torch.randn(batch, 512, device="cuda")), torch.randint(0, 10, (batch,)).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 99:
        small, big = norm2(32), norm2(256)
        g2, s = (256 * big - 32 * small) / 224, (small - big) / (1 / 32 - 1 / 256)
        batch = int(min(2048, max(32, s / (g2 + 1e-8))))
        print(step, batch)
