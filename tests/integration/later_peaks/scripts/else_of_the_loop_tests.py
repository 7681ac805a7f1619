"""for ... else: the test comes where no break came."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
held_out = torch.randn(20000, 256)
for step in range(20000):
    x = torch.randn(64, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    if loss != loss:
        print("diverged")
        break
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
else:
    with torch.no_grad():
        print("test", model(held_out.cuda()).mean().item())
