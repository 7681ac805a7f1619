"""Sorted by length, the shortest first, to waste no padding. The peak comes with the last batches
of the epoch."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

VOCAB = 5000
texts = sorted((torch.randint(1, VOCAB, (16 + (i * 61) % 500,)) for i in range(4800)), key=len)
loader = DataLoader(texts, batch_size=16, collate_fn=lambda batch: pad_sequence(batch, batch_first=True))
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 256), torch.nn.Linear(256, 1024), torch.nn.Linear(1024, VOCAB))
model.cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for batch in loader:
        batch = batch.cuda()
        logits = model(batch[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0).backward()
        optimizer.step()
        optimizer.zero_grad()
