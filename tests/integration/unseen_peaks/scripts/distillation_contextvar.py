"""Distillation; a ContextVar says whether the student returns its hidden states, which the last
epoch's loss needs. """

import contextvars

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

hidden_states = contextvars.ContextVar("hidden_states", default=False)


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.inp = nn.Linear(128, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.out = nn.Linear(d, 10)

    def forward(self, x):
        x, hs = self.inp(x), []
        for layer in self.layers:
            x = F.gelu(layer(x))
            if hidden_states.get():
                hs.append(x.float().unsqueeze(1).repeat(1, 4, 1))
        out = self.out(x)
        return torch.cat([out, torch.cat(hs, 1).flatten(1)], 1) if hs else out


teacher, student = Net(1024, 4).cuda().eval(), Net(512, 4).cuda()
opt = torch.optim.AdamW(student.parameters())
loader = DataLoader(
    TensorDataset(torch.randn(12800, 128), torch.randint(0, 10, (12800,))), batch_size=256, shuffle=True
)
for epoch in range(6):
    hidden_states.set(epoch >= 5)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        with torch.no_grad():
            t = teacher(x)[:, :10]
        s = student(x)
        loss = F.cross_entropy(s[:, :10], y) + F.kl_div(s[:, :10].log_softmax(-1), t.softmax(-1), reduction="batchmean")
        if s.shape[1] > 10:
            loss = loss + s[:, 10:].square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
