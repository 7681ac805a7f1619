"""Random crop length drawn on the GPU and read back."""

import torch
import torch.nn as nn

torch.manual_seed(0)
net = nn.Sequential(
    *[m for _ in range(6) for m in (nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))], nn.Linear(128, 10)
).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(600):
    n = torch.randint(64, 512, (1,), device="cuda").item()
    x = torch.randn(16, n, 128, device="cuda")
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
