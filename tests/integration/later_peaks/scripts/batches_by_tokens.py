"""At most 4,096 tokens a batch, sorted by length: attention's square grows with length. The peak
comes at the end."""

import torch


def batches(lengths, most):
    batch = []
    for length in sorted(lengths):
        if batch and (len(batch) + 1) * length > most:
            yield batch
            batch = []
        batch.append(length)
    yield batch


lengths = [16 + (i * 97) % 1000 for i in range(1500)]
q, k, v, out = (torch.nn.Linear(256, 256).cuda() for _ in range(4))
optimizer = torch.optim.Adam([p for m in (q, k, v, out) for p in m.parameters()])
for epoch in range(2):
    for batch in batches(lengths, 4096):
        x = torch.zeros(len(batch), max(batch), 256).cuda()
        scores = (
            q(x).unflatten(-1, (8, 32)).transpose(1, 2) @ k(x).unflatten(-1, (8, 32)).permute(0, 2, 3, 1)
        ) / 32**0.5
        mixed = scores.softmax(-1) @ v(x).unflatten(-1, (8, 32)).transpose(1, 2)
        out(mixed.transpose(1, 2).flatten(2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
