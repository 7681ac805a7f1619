"""IterableDataset: each of four workers reads the file of its own number; the files have different
lengths."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

LENGTHS = [64, 128, 256, 1024]


class Shards(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for _ in range(640):
            yield torch.randn(LENGTHS[info.id], 64)


net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
opt = torch.optim.AdamW(net.parameters())
for epoch in range(2):
    for x in DataLoader(Shards(), batch_size=16, num_workers=4):
        opt.zero_grad()
        net(x.cuda()).pow(2).mean().backward()
        opt.step()
