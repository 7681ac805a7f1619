"""Distillation of hidden states (returned in a list) in the last epochs only; the teacher always
gives both."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.i = nn.Linear(128, d)
        self.l = nn.ModuleList([nn.Sequential(nn.Linear(d, d), nn.GELU()) for _ in range(n)])
        self.o = nn.Linear(d, 10)
        self.p = nn.ModuleList([nn.Linear(d, 2048) for _ in range(n)])

    def forward(self, x):
        h = self.i(x)
        hs = []
        for l, p in zip(self.l, self.p):
            h = l(h)
            hs.append(p(h))
        return self.o(h), hs


teacher, student = Net(1024, 4).cuda().eval(), Net(256, 4).cuda()
opt = torch.optim.AdamW(student.parameters())
for step in range(1500):
    x = torch.randn(1024, 128, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        tl, th = teacher(x)
    with torch.autocast("cuda", torch.bfloat16):
        sl, sh = student(x)
        loss = F.kl_div(sl.log_softmax(1), tl.softmax(1), reduction="batchmean")
        if step >= 1300:
            loss = loss + sum(F.mse_loss(a.float(), b.float()) for a, b in zip(sh, th))
    opt.zero_grad()
    loss.backward()
    opt.step()
