"""A small job that says "cuda" everywhere: job.py MODEL OPTIMIZER ZERO_GRAD [amp | half]
[accumulate] [fused].

MODEL is mlp, attention, encoder or cnn; OPTIMIZER one of torch.optim or Quantized (its state is in
bytes); ZERO_GRAD is start, backward (just before it), end (after the step, to zeros) or after
(likewise, to None). amp and half are autocast to bfloat16 and float16. The recordings *.profile.gz
beside this file are what the probe left of it under torch 2.13.0+cpu, and
tests/unit/test_profile_orchestrator.py holds them to the peaks that the device engine gives for it.
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
        query, key, value = (
            self.qkv(self.norm(hidden)).view(*tokens.shape, 3, 4, 64).permute(2, 0, 3, 1, 4)
        )
        seen = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=0.1, is_causal=True
        )
        hidden = hidden + self.dropout(self.out(seen.transpose(1, 2).reshape(hidden.shape)))
        return self.head(hidden).flatten(0, 1)


class Quantized(torch.optim.Optimizer):
    """Momentum in bytes with one scale for each 256 of them, as 8-bit optimizers keep it."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state, count = self.state[parameter], parameter.numel()
                if not state:
                    state["momentum"] = torch.zeros(
                        count, dtype=torch.uint8, device=parameter.device
                    )
                    state["scales"] = torch.zeros(-(-count // 256), device=parameter.device)
                momentum = state["momentum"].float().mul_(0.9).add_(parameter.grad.flatten())
                parameter.add_(momentum.view_as(parameter), alpha=-group["lr"])
                state["momentum"].copy_(momentum.abs().clamp_(0, 255))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 256)
        self.layers = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
                for _ in range(2)
            ]
        )
        self.head = nn.Linear(256, 500)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens))).flatten(0, 1)


def build(name):
    if name == "mlp":
        layers = (
            nn.Linear(784, 1024),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(1024, 1024),
            nn.GELU(),
            nn.Linear(1024, 10),
        )
        return nn.Sequential(*layers), lambda: torch.randn(256, 784), 10
    if name == "cnn":
        layers = (
            nn.Conv2d(3, 32, 3),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
        )
        return (
            nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 13 * 13, 10)),
            lambda: torch.randn(16, 3, 32, 32),
            10,
        )
    return (
        (Encoder if name == "encoder" else Attention)(),
        lambda: torch.randint(0, 500, (8, 128)),
        500,
    )


def main():
    name, optimizer_name, zero_grad, *words = sys.argv[1:]
    dtype = torch.float16 if "half" in words else torch.bfloat16
    amp = "amp" in words or "half" in words
    assert torch.cuda.is_available()
    device = torch.device("cuda")
    model, batch, classes = build(name)
    model.cuda()
    assert next(model.parameters()).is_cuda
    options = {"fused": True} if "fused" in words else {}
    made = Quantized if optimizer_name == "Quantized" else getattr(torch.optim, optimizer_name)
    optimizer = made(model.parameters(), lr=1e-3, **options)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for _ in range(6):
        if zero_grad == "start":
            optimizer.zero_grad()
        for _ in range(3 if "accumulate" in words else 1):
            with torch.autocast("cuda", dtype=dtype, enabled=amp):
                scores = model(batch().to(device, non_blocking=True))
                loss = functional.cross_entropy(
                    scores, torch.randint(0, classes, (len(scores),), device=device)
                )
            if zero_grad == "backward":
                optimizer.zero_grad()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if zero_grad in ("end", "after"):
            optimizer.zero_grad(set_to_none=zero_grad == "after")
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
