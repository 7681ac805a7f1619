"""Aspect-ratio buckets (as in diffusion trainers): a batch sampler with (size) buckets; slow
decoding; the last few batches of an epoch are of a large bucket. """

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    sizes = [32] * 6000 + [96] * 64

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        img = np.random.default_rng(i).random((3, 64, 64), dtype=np.float32)
        for _ in range(250):
            img = np.sqrt(img * img + 1e-3)
        s = self.sizes[i]
        return F.interpolate(torch.from_numpy(img)[None], size=(s, s))[0], i % 10


class Buckets:
    def __init__(self, sizes, bs):
        by = {}
        for i, s in enumerate(sizes):
            by.setdefault(s, []).append(i)
        self.batches = [ids[k : k + bs] for ids in by.values() for k in range(0, len(ids), bs)]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


data = Images()
loader = DataLoader(data, batch_sampler=Buckets(data.sizes, 16))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(3, 128)
        self.l = nn.ModuleList([nn.Linear(128, 128) for _ in range(8)])
        self.o = nn.Linear(128, 10)

    def forward(self, x):
        h = self.proj(x.flatten(2).transpose(1, 2))
        for l in self.l:
            h = h + F.relu(l(h))
        return self.o(h.mean(1))


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(1):
    for x, y in loader:
        loss = F.cross_entropy(net(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch)
