"""A sweep over widths in one process; the best by validation loss is trained again with a larger
batch (here the widest wins). """

import os

import torch
import torch.nn as nn

WINS = os.environ.get("WINS")


def net(width):
    return nn.Sequential(
        nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256)
    ).cuda()


def fit(model, batch, steps):
    opt = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x = torch.randn(batch, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        x = torch.randn(512, 256, device="cuda")
        return (model(x) - x).square().mean().item()


results = {}
for width in (256, 512, 1024, 2048):
    results[width] = fit(net(width), 128, 150)
best = int(WINS) if WINS else min(results, key=results.get)
print("best", best)
fit(net(best), 2048, 300)
