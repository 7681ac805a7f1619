"""After training, similarities of all embeddings by `@` and methods alone: no call that looks like
work."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
bank = torch.zeros(8192, 256, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(20000):
    x = torch.randn(256, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
similar = bank @ bank.T
print("max", similar.max().item())
