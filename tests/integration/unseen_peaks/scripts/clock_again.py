"""Each 10 minutes by the clock: an evaluation of larger batches. The run itself takes hours on a
GPU."""

import os
import time

import torch
import torch.nn as nn

EVERY = float(os.environ.get("EVAL_SECONDS", "600"))
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
last = time.time()
for step in range(3000):
    x = torch.randn(128, 512, device="cuda")
    loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if time.time() - last > EVERY:
        last = time.time()
        with torch.no_grad():
            outs = torch.cat([model(torch.randn(4096, 512, device="cuda")) for _ in range(8)])
            print(outs.mean())
        del outs
