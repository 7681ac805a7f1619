"""A Llama trained with accelerate, in a loop of the script's own."""

import argparse

import accelerate
import torch
from llama import Texts, llama


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    trains = accelerate.Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=given.accumulation
    )
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.utils.data.DataLoader(Texts(), given.batch_size)
    model, optimizer, batches = trains.prepare(model, optimizer, batches)
    for _, batch in zip(range(given.steps), batches, strict=False):
        with trains.accumulate(model):
            trains.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


main()
