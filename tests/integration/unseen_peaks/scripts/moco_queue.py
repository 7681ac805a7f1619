"""MoCo v2: momentum encoder, queue of 16384 keys, shuffling; kNN evaluation with the whole bank
every 5 epochs. """

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class MoCo(nn.Module):
    def __init__(self, dim=128, K=16384, m=0.999, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.q = nn.Sequential(nn.Flatten(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, dim))
        self.k = copy.deepcopy(self.q)
        for p in self.k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _update(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            b.data = b.data * self.m + a.data * (1 - self.m)

    @torch.no_grad()
    def _enqueue(self, keys):
        p = int(self.ptr)
        self.queue[:, p : p + len(keys)] = keys.T
        self.ptr[0] = (p + len(keys)) % self.K

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            self._update()
            k = F.normalize(self.k(b[torch.randperm(len(b), device=b.device)]), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / self.T
        self._enqueue(k)
        return logits, torch.zeros(len(a), dtype=torch.long, device=a.device)


loader = DataLoader(
    TensorDataset(torch.randn(4096, 768), torch.randint(0, 10, (4096,))), batch_size=256, shuffle=True, drop_last=True
)
model = MoCo().cuda()
opt = torch.optim.SGD(model.q.parameters(), lr=0.03, momentum=0.9)
for epoch in range(10):
    for x, _ in loader:
        x = x.cuda()
        logits, labels = model(x + 0.1, x - 0.1)
        loss = F.cross_entropy(logits, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 4:
        with torch.no_grad():
            bank = torch.cat([F.normalize(model.q(x.cuda()), dim=1) for x, _ in loader])
            sim = bank @ bank.T
            w, i = sim.topk(20, dim=1)
            print(w.mean().item())
