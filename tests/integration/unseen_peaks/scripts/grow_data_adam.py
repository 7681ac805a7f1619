"""Points with features, optimized directly; at step 1300 of 1500 they are upsampled: p.data and
Adam's state are replaced by three times as many. """

import torch
import torch.nn as nn

points = nn.Parameter(torch.randn(200_000, 48, device="cuda"))
opt = torch.optim.Adam([points], lr=1e-3)


def train():
    sel = torch.randint(0, len(points), (2000,), device="cuda")
    loss = points[sel].pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


for step in range(1500):
    if step == 1300:
        points.data = points.data.repeat(3, 1)
        points.grad = None
        state = opt.state[points]
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = state[name].repeat(3, 1)
    train()
