"""After each of 60 epochs a copy of the weights stays on the GPU, to be averaged."""

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16000, 256)), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
history = []
for epoch in range(60):
    for (x,) in loader:
        x = x.cuda()
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    history.append({name: value.detach().clone() for name, value in model.state_dict().items()})
