"""Batches of one length each, the short ones first (a sampler that sorts): torch's own
collate_fn."""

import torch
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self):
        self.lengths = sorted([32] * 40000 + [64] * 40000 + [128] * 40000)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.zeros(self.lengths[index], dtype=torch.long)


embedding, model = torch.nn.Embedding(1000, 256).cuda(), torch.nn.Linear(256, 1000).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *model.parameters()])
for epoch in range(3):
    for ids in DataLoader(Sentences(), batch_size=16):
        ids = ids.cuda()
        loss = torch.nn.functional.cross_entropy(model(embedding(ids)).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
