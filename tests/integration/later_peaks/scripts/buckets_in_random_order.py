"""Batches of one bucket each (50, 100, 200, 400, 800 frames), buckets shuffled; few samples are in
the largest."""

import random

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

random.seed(1)
FRAMES = [50] * 1600 + [100] * 800 + [200] * 400 + [400] * 128 + [800] * 16


class Speech(Dataset):
    def __len__(self):
        return len(FRAMES)

    def __getitem__(self, index):
        return torch.zeros(FRAMES[index], 80)


class Buckets(Sampler):
    def __iter__(self):
        batches = [list(range(start, start + 16)) for start in range(0, len(FRAMES), 16)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return len(FRAMES) // 16


model = torch.nn.Sequential(torch.nn.Linear(80, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 5000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for frames in DataLoader(Speech(), batch_sampler=Buckets()):
        log_probs = model(frames.cuda()).log_softmax(-1)
        (-log_probs[..., 0].mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
