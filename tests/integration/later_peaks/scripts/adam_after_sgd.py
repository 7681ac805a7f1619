"""SGD without momentum for 400 steps, then Adam with its two moments. The peak comes at the 401st
step."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 2048)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(600):
    if step == 400:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(128, 2048, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
