"""A batch sampler that makes batches larger after 3000 of them."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class RampUp:
    def __init__(self, samples, first, then, after):
        self.samples, self.first, self.then, self.after = samples, first, then, after

    def __iter__(self):
        order, at, number = torch.randperm(self.samples).tolist(), 0, 0
        while at < self.samples:
            size = self.first if number < self.after else self.then
            yield order[at : at + size]
            at, number = at + size, number + 1


data = TensorDataset(torch.randn(100_000, 64), torch.randint(0, 10, (100_000,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for x, y in DataLoader(data, batch_sampler=RampUp(100_000, 16, 256, 4000)):
    loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
