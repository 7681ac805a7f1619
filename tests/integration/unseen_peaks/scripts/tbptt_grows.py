"""Truncated BPTT, an LSTMCell unrolled in Python; the horizon grows with the step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

cell = nn.LSTMCell(128, 512).cuda()
head = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)).cuda()
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()])
for step in range(600):
    horizon = 5 + 5 * (step // 100)
    h = c = torch.zeros(128, 512, device="cuda")
    loss = 0
    x = torch.randn(horizon + 1, 128, 128, device="cuda")
    for t in range(horizon):
        h, c = cell(x[t], (h, c))
        loss = loss + F.mse_loss(head(h), x[t + 1])
    opt.zero_grad()
    loss.backward()
    opt.step()
