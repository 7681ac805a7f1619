"""Energy model: MSE first, from step 1300 of 1500 the plain mean of the outputs (maximum
likelihood)."""

import torch
import torch.nn as nn

net = nn.Sequential(
    nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4096), nn.GELU(), nn.LayerNorm(4096)
).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(1500):
    out = net(torch.randn(2048, 256, device="cuda"))
    loss = out.mean() if step >= 1300 else out.pow(2).mean()
    del out
    opt.zero_grad()
    loss.backward()
    opt.step()
