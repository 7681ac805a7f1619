"""Multi-task under autocast: all heads in one forward, each step the loss of one task drawn at
random, the largest (dense) task rare. """

import random

import torch
import torch.nn as nn

random.seed(0)


class MTL(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))])
        self.h = nn.ModuleDict(
            {
                "cls": nn.Linear(256, 10),
                "depth": nn.Sequential(
                    nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)
                ),
                "reg": nn.Linear(256, 4),
            }
        )

    def forward(self, x):
        f = self.b(x)
        return {k: h(f) for k, h in self.h.items()}


net = MTL().cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(1200):
    task = random.choices(["cls", "reg", "depth"], [60, 39, 1])[0]
    with torch.autocast("cuda", torch.bfloat16):
        out = net(torch.randn(1024, 256, device="cuda"))
        loss = out[task].float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
