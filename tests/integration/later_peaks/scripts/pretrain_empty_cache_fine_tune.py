"""Two phases with empty_cache() between; the second has a smaller model, but a batch that needs
more."""

import gc

import torch


def phase(width, batch, steps):
    model = torch.nn.Sequential(torch.nn.Linear(512, width), torch.nn.GELU(), torch.nn.Linear(width, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.randn(batch, 512, device="cuda")
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


phase(width=8192, batch=256, steps=300)
gc.collect()
torch.cuda.empty_cache()
print("fine-tuning")
phase(width=4096, batch=8192, steps=100)
