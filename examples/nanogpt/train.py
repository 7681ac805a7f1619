"""A plain loop in the manner of nanoGPT: tokens from a memmap, gradient accumulation, evaluation,
checkpoints.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional


@dataclass
class Shape:
    """The model's size."""

    vocabulary: int = 50304
    context: int = 512
    layers: int = 8
    heads: int = 8
    width: int = 512


class Block(nn.Module):
    """Attention, then an MLP, each on a normalised residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, time, width) to the same."""
        batch, time, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(
            batch, time, 3, self.heads, width // self.heads
        )
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    """A decoder-only transformer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of (batch, time) tokens against their targets."""
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch_from(data: np.memmap, size: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - context - 1, (size,)).tolist()
    rows = torch.stack(
        [torch.from_numpy(data[i : i + context + 1].astype(np.int64)) for i in starts]
    )
    rows = rows.pin_memory().to("cuda", non_blocking=True)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--evaluate-every", type=int, default=20)
    parser.add_argument(
        "--compile", action="store_true", help="needs Triton, which comes with torch"
    )
    arguments = parser.parse_args()

    shape = Shape()
    train, validation = (
        np.memmap(arguments.data / name, np.uint16, "r") for name in ("train.bin", "val.bin")
    )
    model = Model(shape).cuda()
    if arguments.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    for step in range(arguments.steps):
        if step % arguments.evaluate_every == 0:
            model.eval()
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                losses = [
                    model(*batch_from(validation, arguments.batch_size, shape.context)).item()
                    for _ in range(4)
                ]
            model.train()
            print(f"step {step}: validation loss {sum(losses) / len(losses):.3f}", flush=True)
            arguments.out.mkdir(parents=True, exist_ok=True)
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(checkpoint, arguments.out / "checkpoint.pt")
        for _ in range(arguments.accumulate):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(*batch_from(train, arguments.batch_size, shape.context))
            (loss / arguments.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
