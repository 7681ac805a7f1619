"""A custom autograd.Function whose forward reads a global set by a schedule (number of Sinkhorn
iterations kept). """

import torch
import torch.nn as nn

ITERATIONS = 2


class Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        kept = []
        p = scores.softmax(-1)
        for _ in range(ITERATIONS):
            p = p / p.sum(0, keepdim=True)
            p = p / p.sum(1, keepdim=True)
            kept.append(p)
        ctx.save_for_backward(*kept)
        return p.clone()

    @staticmethod
    def backward(ctx, g):
        for p in reversed(ctx.saved_tensors):
            g = g * p
        return g


class SwAV(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128))
        self.prototypes = nn.Linear(128, 1024, bias=False)

    def forward(self, x):
        return Sinkhorn.apply(self.prototypes(self.backbone(x)))


model = SwAV().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    ITERATIONS = 2 if epoch < 3 else 12
    for _ in range(200):
        loss = model(torch.randn(1024, 256, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
