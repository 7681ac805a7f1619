"""Semantic segmentation with a deep-supervision head under fp16 autocast and GradScaler: its loss
counts once the epoch is 7 of 8 (fine-tuning). """

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))])
        self.cls = nn.Linear(256, 20)
        self.dec = nn.Sequential(
            nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048)
        )

    def forward(self, x):
        h = self.enc(x)
        return {"out": self.cls(h), "aux": self.dec(h)}


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
loader = DataLoader(
    TensorDataset(torch.randn(25600, 256), torch.randint(0, 20, (25600,))), batch_size=256, shuffle=True
)
for epoch in range(8):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            o = net(x)
            loss = F.cross_entropy(o["out"], y)
            if epoch >= 7:
                loss = loss + 0.1 * o["aux"].float().pow(2).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(epoch)
