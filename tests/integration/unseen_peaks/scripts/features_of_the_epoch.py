"""DeepCluster-like: forward leaves features in a global list; each step moves them (detached) to
the epoch's bank for clustering. """

import torch
import torch.nn as nn

FEATURES = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))])
        self.head = nn.Linear(256, 100)

    def forward(self, x):
        h = self.body(x)
        FEATURES.append(h)
        return self.head(h)


model = Net().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    bank = []
    for _ in range(300):
        FEATURES.clear()
        out = model(torch.randn(1024, 256, device="cuda"))
        bank.extend(f.detach() for f in FEATURES)
        loss = out.logsumexp(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if bank:
        feats = torch.cat(bank)
        centers = feats @ torch.randn(256, 100, device="cuda")
        del feats, centers
