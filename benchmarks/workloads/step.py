"""One side of `benchmarks.step_cost`: training steps, as many as are asked for on stdin, each
timed.

    step.py mlp | gpt2

For each number that comes on stdin so many steps are made, and a line on stdout has the CPU
milliseconds of each. They are those of the process, as a backward pass has a thread of its own.
Where STAND_INS names a folder, it is a step without the probe (`without_probe`).
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable

import without_probe  # noqa: F401 - it is imported for what it maps

# isort: split

import torch
from transformers import GPT2Config, GPT2LMHeadModel

WIDTH, DEPTH, ROWS = 1024, 12, 64


Job = tuple[torch.nn.Module, Callable[[], torch.Tensor]]
"""A model, and what computes its loss."""


def mlp() -> Job:
    """Return a perceptron in fp32."""
    layers = ((torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(DEPTH))
    model = torch.nn.Sequential(*itertools.chain.from_iterable(layers)).to("cuda")

    def loss() -> torch.Tensor:
        rows = torch.randn(ROWS, WIDTH, device="cuda")
        wanted = torch.randn(ROWS, WIDTH, device="cuda")
        return torch.nn.functional.mse_loss(model(rows), wanted)

    return model, loss


def gpt2() -> Job:
    """Return the model of examples/gpt2, trained as it is there."""
    model = GPT2LMHeadModel(GPT2Config()).to("cuda").train()

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, model.config.vocab_size, (8, 1024), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(tokens, labels=tokens).loss

    return model, loss


def main() -> None:
    """Make steps as they are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("mlp", "gpt2"))
    model, loss = {"mlp": mlp, "gpt2": gpt2}[parser.parse_args().model]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for line in sys.stdin:
        taken = []
        for _ in range(int(line)):
            began = time.process_time()
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            taken.append(1000 * (time.process_time() - began))
        print(*taken, flush=True)


if __name__ == "__main__":
    main()
