"""LoRA by hand: merged into the base weights (weight.data +=) for each evaluation, unmerged
afterwards, evaluation with larger batches and logits gathered. """

import torch
import torch.nn as nn
import torch.nn.functional as F


class L(nn.Module):
    def __init__(self, d, o, r=16):
        super().__init__()
        self.base = nn.Linear(d, o).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(r, d) * 0.01), nn.Parameter(torch.zeros(o, r))
        self.merged = False

    def forward(self, x):
        return self.base(x) if self.merged else self.base(x) + x @ self.a.T @ self.b.T

    def merge(self, on):
        if on != self.merged:
            self.base.weight.data += (1 if on else -1) * self.b.data @ self.a.data
            self.merged = on


net = nn.Sequential(*[m for _ in range(6) for m in (L(1024, 1024), nn.GELU())], L(1024, 1000)).cuda()
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])


def merge(on):
    [m.merge(on) for m in net.modules() if isinstance(m, L)]


for epoch in range(6):
    for _ in range(150):
        loss = F.cross_entropy(net(torch.randn(128, 1024, device="cuda")), torch.randint(0, 1000, (128,)).cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    merge(True)
    net.eval()
    with torch.no_grad():
        logits = torch.cat([net(torch.randn(512, 1024, device="cuda")) for _ in range(40)])
        p = logits.softmax(-1).topk(5).indices
    merge(False)
    net.train()
    del logits
