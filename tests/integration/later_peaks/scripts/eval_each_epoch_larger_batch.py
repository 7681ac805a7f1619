"""After each epoch an evaluation with a batch 32 times as large: its logits make the peak, first
after 300 steps."""

import torch
from torch.utils.data import DataLoader, TensorDataset

train = DataLoader(TensorDataset(torch.randn(4800, 256), torch.randint(0, 1000, (4800,))), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(4096, 256), torch.randint(0, 1000, (4096,))), batch_size=512)
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 20000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in valid:
            correct += (model(x.cuda()).softmax(-1).argmax(-1) == y.cuda()).sum().item()
    model.train()
    return correct / len(valid.dataset)


for epoch in range(3):
    for x, y in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    print(epoch, evaluate())
