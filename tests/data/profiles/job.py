"""A small job that says "cuda" everywhere: job.py MODEL OPTIMIZER ZERO_GRAD [amp].

MODEL is mlp, attention or cnn; ZERO_GRAD is start, backward (just before it) or end (after the step, to zeros). The
recordings *.profile.gz beside this file are what the probe left of it under torch 2.13.0+cpu, and
tests/unit/test_profile_orchestrator.py holds them to the peaks that the device engine gives for the same job.
"""

import sys

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 256)
        self.qkv = nn.Linear(256, 768)
        self.out = nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(256, 500)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        query, key, value = self.qkv(self.norm(hidden)).view(*tokens.shape, 3, 4, 64).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)
        hidden = hidden + self.dropout(self.out(seen.transpose(1, 2).reshape(hidden.shape)))
        return self.head(hidden).flatten(0, 1)


def build(name):
    if name == "mlp":
        layers = nn.Linear(784, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)
        return nn.Sequential(*layers), lambda: torch.randn(256, 784), 10
    if name == "cnn":
        layers = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 13 * 13, 10)), lambda: torch.randn(16, 3, 32, 32), 10
    return Attention(), lambda: torch.randint(0, 500, (8, 128)), 500


def main():
    name, optimizer_name, zero_grad = sys.argv[1:4]
    amp = "amp" in sys.argv[4:]
    assert torch.cuda.is_available()
    device = torch.device("cuda")
    model, batch, classes = build(name)
    model.cuda()
    assert next(model.parameters()).is_cuda
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for _ in range(6):
        if zero_grad == "start":
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            scores = model(batch().to(device, non_blocking=True))
            loss = functional.cross_entropy(scores, torch.randint(0, classes, (len(scores),), device=device))
        if zero_grad == "backward":
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if zero_grad == "end":
            optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
