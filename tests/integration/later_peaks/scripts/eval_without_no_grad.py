"""The evaluation forgets no_grad and sums the losses as tensors: the graphs of 100 batches are
alive at its end."""

import torch
from torch.utils.data import DataLoader, TensorDataset

train = DataLoader(TensorDataset(torch.randn(2000, 256), torch.randn(2000, 1)), batch_size=10, shuffle=True)
test = DataLoader(TensorDataset(torch.randn(1000, 256), torch.randn(1000, 1)), batch_size=10)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
criterion = torch.nn.MSELoss()
for epoch in range(3):
    for x, y in train:
        optimizer.zero_grad()
        loss = criterion(model(x.to("cuda")), y.to("cuda"))
        loss.backward()
        optimizer.step()
    test_loss = 0
    for x, y in test:
        test_loss += criterion(model(x.to("cuda")), y.to("cuda"))
    print(f"epoch {epoch} test loss {test_loss.item() / len(test):.4f}")
