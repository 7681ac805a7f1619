"""save_on_cpu around the first 300 steps (long context), then short context without it; evaluation
with KV cache after. """

import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d=128, h=4):
        super().__init__()
        self.h, self.qkv, self.o, self.n = h, nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(x)


class LM(nn.Module):
    def __init__(self, v=2000, d=128, n=4):
        super().__init__()
        self.e, self.blocks, self.head = nn.Embedding(v, d), nn.ModuleList(Block(d) for _ in range(n)), nn.Linear(d, v)

    def forward(self, ids, caches=None):
        x = self.e(ids)
        for i, b in enumerate(self.blocks):
            x = b(x, None if caches is None else caches[i])
        return self.head(x)


model = LM().cuda()
opt = torch.optim.AdamW(model.parameters())
for step in range(500):
    long = step < 100
    ids = torch.randint(0, 2000, (8, 512 if long else 256), device="cuda")
    with torch.autograd.graph.save_on_cpu() if long else contextlib.nullcontext():
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 200 == 199:
        model.eval()
        with torch.no_grad():
            caches, tok = [[] for _ in model.blocks], torch.zeros(64, 1, dtype=torch.long, device="cuda")
            for _ in range(300):
                tok = model(tok, caches)[:, -1:].argmax(-1)
        model.train()
