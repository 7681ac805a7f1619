"""Head first; every 40th step all weights: loss.backward(inputs=...); bf16 autocast."""

import torch
import torch.nn as nn
import torch.nn.functional as F

net = nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(1024, 1024), nn.GELU())], nn.Linear(1024, 10)).cuda()
head = list(net[-1].parameters())
everything = list(net.parameters())
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for step in range(800):
    x = torch.randn(1024, 1024, device="cuda")
    y = torch.randint(0, 10, (1024,)).cuda()
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x), y)
    loss.backward(inputs=everything if step % 40 == 39 else head)
    opt.step()
