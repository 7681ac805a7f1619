"""One epoch of 25,000 batches; the one long sample is three quarters in, later than any dry run
trains."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

SAMPLES = 400_000


class Corpus(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.zeros(4000 if index == SAMPLES * 3 // 4 else 100 + index % 3, dtype=torch.long)


loader = DataLoader(Corpus(), batch_size=16, collate_fn=lambda batch: pad_sequence(batch, batch_first=True))
model = torch.nn.Sequential(torch.nn.Embedding(4000, 256), torch.nn.Linear(256, 4000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for tokens in loader:
    tokens = tokens.cuda()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
