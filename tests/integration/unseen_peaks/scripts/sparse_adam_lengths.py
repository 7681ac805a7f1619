"""Recommender: sparse embedding, SparseAdam; sessions of varied length, bucketed by length, a few
very long buckets."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(1)
torch.manual_seed(1)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(200_000, 64, sparse=True)

    def forward(self, ids):
        return self.emb(ids).mean(1)


tower = Tower().cuda()
head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
sparse = torch.optim.SparseAdam(tower.parameters(), lr=1e-3)
dense = torch.optim.Adam(head.parameters(), lr=1e-3)
for step in range(1000):
    length = 2000 if step == 777 else random.choice([20, 40, 60])
    ids = torch.randint(0, 200_000, (128, length))
    y = torch.rand(128).cuda()
    loss = F.mse_loss(head(tower(ids.cuda())).squeeze(1), y)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
print("done")
