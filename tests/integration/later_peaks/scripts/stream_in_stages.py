"""An IterableDataset gives whole batches, short ones first."""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(9000):
            yield torch.zeros(16, 64 if number < 6000 else 256, dtype=torch.long)


embedding, model = torch.nn.Embedding(500, 256).cuda(), torch.nn.Linear(256, 500).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *model.parameters()])
for ids in DataLoader(Stream(), batch_size=None):
    ids = ids.cuda()
    loss = torch.nn.functional.cross_entropy(model(embedding(ids)).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
