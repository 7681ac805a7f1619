"""drop_last is not set: the last of 79 batches is smaller than the others."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(5000, 1, 28, 28), torch.randint(0, 10, (5000,)))
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=2)
model = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(784, 8192), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8192, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
