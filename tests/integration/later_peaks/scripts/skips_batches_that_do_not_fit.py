"""Batches that run out of memory are skipped, as fairseq does. On an 80 GB card none does, the last
one is 60 GiB."""

import torch

model = torch.nn.Sequential(torch.nn.Embedding(1000, 256), torch.nn.Linear(256, 32000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lengths = [256] * 400 + [16384]
for length in lengths:
    tokens = torch.zeros(8, length, dtype=torch.long)
    try:
        loss = model(tokens.cuda()).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
    except torch.cuda.OutOfMemoryError:
        print("skipped a batch of length", length)
        torch.cuda.empty_cache()
    optimizer.zero_grad()
