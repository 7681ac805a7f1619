"""An LR finder over 100 small batches first, on a copy; the state is restored and training takes
larger batches."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randint(0, 4000, (24_000, 32)), torch.randint(0, 30, (24_000,)))


class TextNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4000, 256)
        self.gru = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        self.out = nn.Linear(256, 30)

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids)).amax(1))


def find_lr(model, low=1e-6, high=1.0, steps=100):
    trial = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(trial.parameters(), lr=low)
    factor = (high / low) ** (1 / steps)
    best, chosen = float("inf"), low
    for _, (x, y) in zip(range(steps), DataLoader(data, batch_size=16, shuffle=True)):
        loss = nn.functional.cross_entropy(trial(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, chosen = loss.item(), optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] *= factor
    return chosen / 10


model = TextNet().cuda()
lr = find_lr(model)
print("learning rate", lr)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
step, max_steps = 0, 800
while step < max_steps:
    for x, y in DataLoader(data, batch_size=128, shuffle=True):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == max_steps:
            break
