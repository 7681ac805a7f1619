"""GPT-2 small from its configuration, on synthetic tokens, in bf16: an ordinary single-GPU training
script.
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    device = torch.device("cuda")
    model = GPT2LMHeadModel(GPT2Config()).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(arguments.steps):
        tokens = torch.randint(
            0, model.config.vocab_size, (arguments.batch_size, arguments.sequence), device=device
        )
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            peak = torch.cuda.max_memory_reserved() / 2**30
            print(f"step {step}: loss {loss.item():.3f}, {peak:.2f} GiB reserved", flush=True)


if __name__ == "__main__":
    main()
