"""A learning rate that warms up and decays over 800 steps. The memory of a step never changes."""

import math

import torch

STEPS, WARMUP = 800, 100
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.0)
embed = torch.nn.Embedding(8000, 256)
model = torch.nn.Sequential(embed, torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(256, 8000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)


def factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for step in range(STEPS):
    tokens = torch.randint(0, 8000, (16, 129), device="cuda")
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 100 == 0:
        print(step, loss.item(), scheduler.get_last_lr())
