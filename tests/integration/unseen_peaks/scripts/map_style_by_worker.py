"""A curriculum by worker_init_fn: each of 4 workers gets its own crop size (multi-scale; a batch is
one worker's)."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

SIZE = {}


class Images(Dataset):
    crop = 32

    def __len__(self):
        return 3200

    def __getitem__(self, i):
        return torch.randn(self.crop * self.crop, 3), i % 10


def init(worker):
    get_worker_info().dataset.crop = [32, 48, 64, 96][worker]


net = nn.Sequential(nn.Linear(3, 128), *[m for _ in range(6) for m in (nn.Linear(128, 128), nn.GELU())]).cuda()
opt = torch.optim.AdamW(net.parameters())
for epoch in range(3):
    for x, y in DataLoader(Images(), batch_size=16, num_workers=4, worker_init_fn=init):
        opt.zero_grad()
        net(x.cuda()).pow(2).mean().backward()
        opt.step()
