"""The outputs of each step are kept for a plot at the end: 2 MB in each of 600 steps."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
outputs = []
for step in range(600):
    x = torch.randn(1024, 512, device="cuda")
    out = model(x)
    torch.nn.functional.mse_loss(out, x).backward()
    optimizer.step()
    optimizer.zero_grad()
    outputs.append(out.detach())
torch.save(torch.stack([out.mean(0) for out in outputs]).cpu(), "outputs.pt")
