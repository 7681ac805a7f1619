"""EmbeddingBag(sparse) + SGD, text classification with ragged bags; every epoch's longest texts
last."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

random.seed(0)
torch.manual_seed(0)
data = [(random.randint(0, 3), [random.randrange(95_000) for _ in range(random.randint(20, 60))]) for _ in range(6000)]
data += [(0, [random.randrange(95_000) for _ in range(4000)]) for _ in range(64)]
data.sort(key=lambda d: len(d[1]))


def collate(batch):
    ids = torch.tensor([i for _, t in batch for i in t])
    off = torch.tensor([0, *[len(t) for _, t in batch][:-1]]).cumsum(0)
    return torch.tensor([l for l, _ in batch]), ids, off


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(95_000, 64, sparse=True)
        self.fc = nn.Linear(64, 4)

    def forward(self, ids, off):
        return self.fc(self.bag(ids, off))


model = Text().cuda()
opt = torch.optim.SGD(model.parameters(), lr=5.0)
for epoch in range(4):
    for y, ids, off in DataLoader(data, batch_size=64, collate_fn=collate):
        loss = F.cross_entropy(model(ids.cuda(), off.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch)
