"""DLRM-like: EmbeddingBag(sparse) with Adagrad; bags of one length, from epoch 9 of 10 multi-hot
with longer ones."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.ModuleList([nn.EmbeddingBag(50_000, 64, sparse=True, mode="sum") for _ in range(4)])

    def forward(self, ids):
        return torch.cat([e(i) for e, i in zip(self.e, ids)], 1)


emb, top = Dlrm().cuda(), nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
so, do = torch.optim.Adagrad(emb.parameters(), lr=0.01), torch.optim.Adam(top.parameters())
for epoch in range(10):
    k = 4 if epoch < 9 else 60
    for step in range(120):
        ids = torch.randint(0, 50_000, (4, 512, k)).cuda()
        y = torch.rand(512).cuda()
        loss = F.binary_cross_entropy_with_logits(top(emb(ids)).squeeze(1), y)
        so.zero_grad()
        do.zero_grad()
        loss.backward()
        so.step()
        do.step()
