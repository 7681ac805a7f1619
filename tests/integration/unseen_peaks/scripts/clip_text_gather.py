"""CLIP with gradient caching under autocast: embeddings first without gradients, then once more
with them; the temperature is clamped; zero-shot evaluation with all class prompts every 200 steps.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def tower(i):
    return nn.Sequential(
        nn.Linear(i, 1024),
        *[m for _ in range(4) for m in (nn.LayerNorm(1024), nn.Linear(1024, 1024), nn.GELU())],
        nn.Linear(1024, 256),
    )


im, tx = tower(768).cuda(), tower(512).cuda()
scale = nn.Parameter(torch.tensor(2.6, device="cuda"))
opt = torch.optim.AdamW([*im.parameters(), *tx.parameters(), scale], 1e-4)


def embed(m, x):
    return F.normalize(m(x).float(), dim=1)


for step in range(500):
    xs, ts = torch.randn(16, 64, 768, device="cuda"), torch.randn(16, 64, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            a, b = torch.cat([embed(im, x) for x in xs]), torch.cat([embed(tx, t) for t in ts])
        a.requires_grad_()
        b.requires_grad_()
        logits = scale.exp() * a @ b.T
        y = torch.arange(len(a), device="cuda")
        (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y)).backward()
        for i in range(16):
            (
                (embed(im, xs[i]) * a.grad[i * 64 : (i + 1) * 64]).sum()
                + (embed(tx, ts[i]) * b.grad[i * 64 : (i + 1) * 64]).sum()
            ).backward()
    opt.step()
    opt.zero_grad()
    scale.data.clamp_(0, 4.6)
    if step % 200 == 199:
        with torch.no_grad():
            c = embed(tx, torch.randn(8000, 512, device="cuda"))
            r = [(embed(im, torch.randn(500, 768, device="cuda")) @ c.T).topk(5).indices for _ in range(20)]
