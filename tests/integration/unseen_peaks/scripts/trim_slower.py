"""Tokenized to 512 with padding in __getitem__ (slow); the loop trims each batch to its longest
text."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(0)
torch.manual_seed(0)
texts = [" ".join(random.choices(["cat", "dog", "bird"], k=random.randint(10, 60))) for _ in range(8000)]
for i in (5003, 6130):
    texts[i] = " ".join(random.choices(["cat", "dog", "bird"], k=500))


class Texts(Dataset):
    def __len__(self):
        return len(texts)

    def __getitem__(self, i):
        words = texts[i].split()
        ids = [sum(ord(c) ** k for k in range(8) for c in w) % 1000 + 1 for w in words][:512]
        for _ in range(500):
            ids = [(j * 31 + 7) % 1000 + 1 for j in ids]
        n = len(ids)
        return {"ids": torch.tensor(ids + [0] * (512 - n)), "mask": torch.tensor([1] * n + [0] * (512 - n)), "y": i % 2}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(1001, 128)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2)
        self.out = nn.Linear(128, 2)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids)).mean(1))


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
for epoch in range(1):
    for b in DataLoader(Texts(), batch_size=16):
        n = int(b["mask"].sum(1).max())
        loss = F.cross_entropy(net(b["ids"][:, :n].cuda()), b["y"].cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
