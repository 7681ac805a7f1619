"""Halves the batch on OutOfMemoryError until it fits, then trains with accumulation."""

import torch
import torch.nn as nn

net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))]).cuda()
opt = torch.optim.AdamW(net.parameters())
torch.cuda.set_per_process_memory_fraction(0.05)
batch, step = 65536, 0
while step < 400:
    try:
        for _ in range(max(1, 65536 // batch // 8)):
            net(torch.randn(batch, 1024, device="cuda")).pow(2).mean().backward()
        opt.step()
        opt.zero_grad()
        step += 1
    except torch.cuda.OutOfMemoryError:
        batch //= 2
        opt.zero_grad()
        torch.cuda.empty_cache()
        print("batch", batch)
