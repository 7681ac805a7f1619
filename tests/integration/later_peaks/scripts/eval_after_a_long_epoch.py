"""Epochs of 30,000 batches, an evaluation with a larger batch after each: loaders must be cut to
see it."""

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES = 480_000


class Samples(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.zeros(256), index % 1000


def run(model, loader, optimizer=None):
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10_000)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(10):
    run(model.train(), DataLoader(Samples(SAMPLES), batch_size=16), optimizer)
    run(model.eval(), DataLoader(Samples(4096), batch_size=2048))
