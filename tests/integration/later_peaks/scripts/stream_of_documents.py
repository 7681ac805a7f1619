"""An IterableDataset whose documents grow longer as the stream goes on, as in a crawl sorted by
date."""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(4000):
            yield torch.full((64 + number // 10,), number % 4000)


def collate(documents):
    return torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)


model = torch.nn.Sequential(torch.nn.Embedding(4000, 256), torch.nn.Linear(256, 4000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step, tokens in enumerate(DataLoader(Stream(), batch_size=8, collate_fn=collate), start=1):
    tokens = tokens.to("cuda")
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        print(step, loss.item())
