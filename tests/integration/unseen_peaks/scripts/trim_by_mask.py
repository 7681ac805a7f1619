"""Texts padded to 512 by the data set; the loop trims each batch to its longest (mask.sum); one
text in 700 is long; tokenizing is slow. """

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, n=12000):
        rng = random.Random(3)
        self.lengths = [512 if i in (7003, 9107, 10311) else rng.randint(20, 48) for i in range(n)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        n = self.lengths[i]
        # tokenizing takes its time
        words = " ".join(str(j * i % 9973) for j in range(1500)).split()
        sum(hash(w) % 7 for w in words)
        ids, mask = torch.zeros(512, dtype=torch.long), torch.zeros(512, dtype=torch.long)
        ids[:n], mask[:n] = torch.randint(1, 1000, (n,)), 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor(i % 2)}


class Classifier(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(1000, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, 2)

    def forward(self, ids, mask):
        return self.head(self.enc(self.emb(ids), src_key_padding_mask=mask == 0)[:, 0])


loader = DataLoader(Texts(), batch_size=16)
model = Classifier().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for epoch in range(1):
    for batch in loader:
        longest = int(batch["attention_mask"].sum(1).max())
        ids, mask = batch["input_ids"][:, :longest].cuda(), batch["attention_mask"][:, :longest].cuda()
        loss = F.cross_entropy(model(ids, mask), batch["labels"].cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
