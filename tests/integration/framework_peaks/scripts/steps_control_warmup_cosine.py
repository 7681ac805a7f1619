"""A plain loop over 3,000 steps with warmup, cosine, clipping and a log every 100 steps. Peaks in
the second step."""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(1337)
total_steps, warmup, base_lr = 3000, 200, 6e-4
model = torch.nn.Sequential(
    torch.nn.Embedding(4096, 256),
    torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True),
    torch.nn.Linear(256, 4096),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=base_lr, betas=(0.9, 0.95), weight_decay=0.1)


def lr_at(step):
    if step < warmup:
        return base_lr * (step + 1) / warmup
    return 0.5 * base_lr * (1 + math.cos(math.pi * (step - warmup) / (total_steps - warmup)))


step = 0
while step < total_steps:
    for group in optimizer.param_groups:
        group["lr"] = lr_at(step)
    batch = torch.randint(0, 4096, (16, 65)).cuda()
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 100 == 0:
        print(f"{step:5d} loss {loss.item():.3f}")
    step += 1
