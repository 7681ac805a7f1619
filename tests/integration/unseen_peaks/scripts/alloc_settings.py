"""expandable_segments switched on in the script; sequence lengths vary."""

import random

import torch
import torch.nn as nn

random.seed(0)
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))]).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(500):
    x = torch.randn(16, random.randint(50, 500), 256, device="cuda")
    opt.zero_grad()
    net(x).pow(2).mean().backward()
    opt.step()
