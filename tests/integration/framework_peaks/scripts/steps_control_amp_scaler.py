"""A plain loop in fp16 with a GradScaler over an endless stream, 500 steps, saved every 100. Peaks
at once."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(256), torch.randn(64)


model = nn.Sequential(
    nn.Linear(256, 2048),
    nn.SiLU(),
    nn.Linear(2048, 2048),
    nn.SiLU(),
    nn.Linear(2048, 2048),
    nn.SiLU(),
    nn.Linear(2048, 64),
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for step, (x, y) in enumerate(itertools.islice(DataLoader(Stream(), batch_size=1024), 500), start=1):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 100 == 0:
        print(step, loss.item())
        torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "last.pt")
