"""Validation is small, the test after all epochs takes a batch of 4,096 and ten augmented views of
each sample."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def loader(count, batch_size):
    return DataLoader(TensorDataset(torch.randn(count, 128), torch.randint(0, 10, (count,))), batch_size=batch_size)


def accuracy(model, batches, views):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in batches:
            x = x.cuda().repeat(views, 1)
            scores = model(x).softmax(-1).unflatten(0, (views, -1)).mean(0)
            right += (scores.argmax(-1).cpu() == y).sum().item()
            total += len(y)
    return right / total


model = torch.nn.Sequential(torch.nn.Linear(128, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
train, valid = loader(4000, 32), loader(500, 32)
for epoch in range(3):
    model.train()
    for x, y in train:
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("valid", accuracy(model, valid, views=1))
print("test", accuracy(model, loader(8192, 4096), views=10))
