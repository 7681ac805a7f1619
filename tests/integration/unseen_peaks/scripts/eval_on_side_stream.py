"""Evaluation of the same module on a stream of its own, every 200 steps, without gradients (as
training does with its teacher). """

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)).cuda()
opt = torch.optim.Adam(model.parameters())
side = torch.cuda.Stream()
for step in range(900):
    x = torch.randn(2048, 512, device="cuda")
    with torch.no_grad():
        target = model(x)
    loss = (model(x) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 200 == 199:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            total = torch.zeros((), device="cuda")
            for _ in range(10):
                total += model(torch.randn(2048, 512, device="cuda")).mean()
        torch.cuda.current_stream().wait_stream(side)
