"""VAE-GAN-ish: forward gives (features, reconstruction) under bf16 autocast; reconstruction counts
from step 1300 of 1500. """

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(784, 784), nn.GELU())])
        self.cls = nn.Linear(784, 10)
        self.dec = nn.Sequential(
            nn.Linear(784, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 784)
        )

    def forward(self, x):
        h = self.enc(x)
        return self.cls(h), self.dec(h)


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(1500):
    x, y = torch.randn(1024, 784, device="cuda"), torch.randint(0, 10, (1024,)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits, rec = net(x)
        loss = F.cross_entropy(logits, y)
        if step >= 1300:
            loss = loss + F.mse_loss(rec.float(), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
