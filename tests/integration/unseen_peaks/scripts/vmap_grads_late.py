"""Per-sample gradients by torch.func every 200 steps (gradient noise scale)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)


def loss_of(p, x, y):
    return F.cross_entropy(functional_call(net, p, (x[None],)), y[None])


for step in range(1000):
    x, y = torch.randn(256, 64, device="cuda"), torch.randint(0, 10, (256,)).cuda()
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 200 == 150:
        p = {k: v.detach() for k, v in net.named_parameters()}
        g = vmap(grad(loss_of), in_dims=(None, 0, 0))(p, x, y)
        norm = sum(v.flatten(1).pow(2).sum(1) for v in g.values())
