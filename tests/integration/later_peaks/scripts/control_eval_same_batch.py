"""Accumulate over four batches, evaluate each epoch with batches of the same size. Training is the
peak."""

import torch
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train = DataLoader(TensorDataset(torch.randn(3200, 512), torch.randn(3200, 1)), batch_size=32, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(640, 512), torch.randn(640, 1)), batch_size=32)
model = torch.nn.Sequential(
    torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 1)
).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(4):
    model.train()
    for i, (x, y) in enumerate(train):
        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        errors = [torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).item() for x, y in valid]
    print(epoch, sum(errors) / len(errors))
    torch.save(model.state_dict(), "last.pt")
