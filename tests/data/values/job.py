"""Small jobs whose memory hangs on computed values: job.py MODEL DEVICE.

MODEL is moe (a mixture of experts: each token goes to the expert of its highest score), masked
(only what scores above zero goes on) or exits (layers are left once the mean is below a bound, as
they are after two of four; zeros are so at once). Seeded, so that every run computes the same."""

import sys

import torch
from torch import nn

WIDTH, TOKENS, STEPS = 256, 4096, 3


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, WIDTH))
            for width in (4 * WIDTH, 8 * WIDTH, 12 * WIDTH, 16 * WIDTH)
        )

    def forward(self, tokens):
        weights, choice = self.router(tokens).softmax(-1).max(-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(-1)
            mixed = mixed.index_add(0, rows, expert(tokens[rows]) * weights[rows, None])
        return mixed


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)
        self.deep = nn.Sequential(
            nn.Linear(WIDTH, 8 * WIDTH), nn.ReLU(), nn.Linear(8 * WIDTH, WIDTH)
        )

    def forward(self, tokens):
        mask = self.score(tokens).squeeze(-1) > 0
        return self.deep(tokens[mask]).sum() + tokens.sum()


class Exits(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)
        )
        for layer in self.layers:
            nn.init.constant_(layer[0].weight, 0.5 / WIDTH)
            nn.init.zeros_(layer[0].bias)

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
            if tokens.mean().item() < 0.3:
                break
        return tokens


def main():
    name, device = sys.argv[1:3]
    torch.manual_seed(0)
    model = {"moe": Experts, "masked": Masked, "exits": Exits}[name]().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, foreach=True)
    for _ in range(STEPS):
        tokens = (torch.ones if name == "exits" else torch.randn)(TOKENS, WIDTH, device=device)
        optimizer.zero_grad()
        model(tokens).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
