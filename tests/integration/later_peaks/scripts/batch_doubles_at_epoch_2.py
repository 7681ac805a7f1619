"""Double the batch size at epochs 2 and 4 instead of lowering the learning rate. The peak comes in
epoch 4."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randint(0, 8000, (3200, 64)))
model = torch.nn.Sequential(torch.nn.Embedding(8000, 256), torch.nn.Linear(256, 8000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batch_size = 16
for epoch in range(6):
    if epoch in (2, 4):
        batch_size *= 2
    for (tokens,) in DataLoader(data, batch_size=batch_size, shuffle=True):
        tokens = tokens.cuda()
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} batch size {batch_size}")
