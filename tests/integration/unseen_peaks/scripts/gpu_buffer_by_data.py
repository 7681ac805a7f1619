"""A hash-grid NeRF's coarse-to-fine: the number of active levels is a buffer, raised by
`.data.fill_`; forward reads it by int(). """

import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, levels=12, f=4):
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(2048, f) * 1e-4) for _ in range(levels))
        self.mlp = nn.Sequential(nn.Linear(levels * f, 64), nn.ReLU(), nn.Linear(64, 4))
        self.levels, self.f = levels, f
        self.register_buffer("active", torch.tensor(2))

    def forward(self, x):
        feats = []
        for i in range(int(self.active)):
            idx = (x * 2**i).long().sum(-1) % 2048
            w = torch.rand(len(x), 8, 1, device=x.device)
            feats.append((self.tables[i][idx][:, None] * w).sum(1))
        pad = torch.zeros(len(x), self.f * (self.levels - len(feats)), device=x.device)
        return self.mlp(torch.cat([*feats, pad], -1))


model = Field().cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(1200):
    if step % 100 == 0 and step:
        model.active.data.fill_(min(12, 2 + step // 100))
    loss = model(torch.rand(8192, 3, device="cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
