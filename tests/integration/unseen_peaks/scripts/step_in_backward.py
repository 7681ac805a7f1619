"""PyTorch's tutorial: the optimizer's step within the backward pass, by hooks, gradients freed at
once."""

import torch
import torch.nn as nn

net = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(2048, 2048), nn.ReLU())]).cuda()
opts = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}


def hook(p):
    opts[p].step()
    opts[p].zero_grad()


for p in net.parameters():
    p.register_post_accumulate_grad_hook(hook)
for step in range(200):
    net(torch.randn(64, 2048, device="cuda")).sum().backward()
