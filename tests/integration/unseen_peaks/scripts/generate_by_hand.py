"""A small GPT trained; every 300 steps it samples with a KV cache grown by torch.cat, the context
growing with step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x)), (k, v)


class GPT(nn.Module):
    def __init__(self, d=256, n=4):
        super().__init__()
        self.e = nn.Embedding(5000, d)
        self.p = nn.Embedding(2048, d)
        self.b = nn.ModuleList([Block(d, 4) for _ in range(n)])
        self.out = nn.Linear(d, 5000, bias=False)

    def forward(self, ids, past=None):
        at = past[0][0].shape[2] if past else 0
        x = self.e(ids) + self.p(torch.arange(at, at + ids.shape[1], device=ids.device))
        new = []
        for i, b in enumerate(self.b):
            x, kv = b(x, past[i] if past else None)
            new.append(kv)
        return self.out(x), new


net = GPT().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
for step in range(1, 1001):
    ids = torch.randint(0, 5000, (8, 129)).cuda()
    logits, _ = net(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 250 == 0:
        net.eval()
        with torch.no_grad():
            cur, past = torch.zeros(256, 1, dtype=torch.long, device="cuda"), None
            for _ in range(step // 4):
                l, past = net(cur, past)
                cur = torch.multinomial(l[:, -1].softmax(-1), 1)
        net.train()
