"""Of every 50th step the outputs are kept on the GPU, for a plot in the end."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
kept = []
for step in range(50000):
    x = torch.randn(256, 256, device="cuda")
    out = model(x)
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        kept.append(out.detach())
