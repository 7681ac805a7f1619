"""A context manager by threading.local (as libraries do it) turns attention maps on for an analysis
each 300 steps. """

import contextlib
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

_flags = threading.local()
_flags.dense = False


@contextlib.contextmanager
def dense_attention():
    _flags.dense = True
    try:
        yield
    finally:
        _flags.dense = False


def use_dense():
    return getattr(_flags, "dense", False)


class Attention(nn.Module):
    def __init__(self, d=128, h=4):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if use_dense():
            a = (q @ k.transpose(-1, -2) / (d // self.h) ** 0.5).softmax(-1)
            y = a @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


model = nn.Sequential(*[Attention() for _ in range(4)]).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(900):
    x = torch.randn(8, 512, 128, device="cuda")
    with dense_attention() if step % 300 == 299 else contextlib.nullcontext():
        loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
