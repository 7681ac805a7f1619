"""Train an MLP for some epochs, nothing else. Every step is like the second."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(4000, 784), torch.randint(0, 10, (4000,)))
loader = DataLoader(data, batch_size=100, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(784, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
