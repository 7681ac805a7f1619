"""At step 1300 of 1500 F.scaled_dot_product_attention is replaced by a plain one that keeps its
weights (to look at them). """

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.qkv, self.o, self.m = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)),
        )

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (4, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.m(x)


def plain(q, k, v):
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


net = nn.Sequential(*[Block() for _ in range(4)]).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(1500):
    if step == 1300:
        F.scaled_dot_product_attention = plain
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(torch.randn(8, 256, 256, device="cuda")).float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
