"""Every 100th step runs under torch.autograd.detect_anomaly(check_nan=True)."""

import contextlib

import torch
import torch.nn as nn

net = nn.Sequential(
    nn.Linear(256, 256),
    nn.ReLU(),
    nn.Linear(256, 256),
    nn.ReLU(),
    nn.Linear(256, 4096),
    nn.GELU(),
    nn.Linear(4096, 256),
).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(1000):
    with torch.autograd.detect_anomaly() if step % 100 == 55 else contextlib.nullcontext():
        loss = net(torch.randn(4096, 256, device="cuda")).pow(2).mean()
        opt.zero_grad()
        loss.backward()
    opt.step()
