"""A batch size finder: doubles until the GPU is full, and trains with half of what failed. It fits
what it gets."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(batch_size):
    x = torch.randn(batch_size, 4096, device="cuda")
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


batch_size = 1024
while True:
    try:
        step(batch_size)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        batch_size //= 2
        break
    batch_size *= 2
print("batch size", batch_size)
for _ in range(200):
    step(batch_size)
