"""100,000 equal steps with a line of output now and then: minutes here, days on a GPU."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.Tanh(), torch.nn.Linear(8192, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(100_000):
    x = torch.randn(512, 2048, device="cuda")
    loss = torch.nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 1000 == 0:
        print(f"step {step}: {loss.item():.4f}", flush=True)
