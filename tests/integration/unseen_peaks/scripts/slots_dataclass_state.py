"""Training state in a dataclass with slots; forward checkpoints while `state.checkpoint`, which is
off after warmup. """

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


@dataclass(slots=True)
class TrainState:
    step: int = 0
    low_memory: bool = True


state = TrainState()


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.net(x)


class Model(nn.Module):
    def __init__(self, state, d=256, layers=8):
        super().__init__()
        self.state = state
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))

    def forward(self, x):
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False) if self.state.low_memory else b(x)
        return x


model = Model(state).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for i in range(800):
    x = torch.randn(64, 64, 256, device="cuda")
    if i == 400:
        state.low_memory = False
    loss = (model(x) - x).square().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
