"""Vocabulary grows at step 1600 of 2000: weight.data of the output layer is replaced by a longer
one (no attribute changes). """

import torch
import torch.nn as nn


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(2000, 128)
        self.body = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))])
        self.out = nn.Parameter(torch.randn(2000, 128) * 0.02)

    def forward(self, ids):
        return self.body(self.emb(ids)) @ self.out.T


net = LM().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def train(ids):
    logits = net(ids[:, :-1])
    loss = logits.float().logsumexp(-1).mean() - logits.gather(-1, ids[:, 1:, None]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


for step in range(2000):
    if step == 1600:
        net.out.data = torch.cat([net.out.data, torch.zeros(6000, 128, device="cuda")])
    train(torch.randint(0, 2000, (16, 65)).cuda())
