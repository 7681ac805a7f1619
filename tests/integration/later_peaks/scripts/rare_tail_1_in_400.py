"""One batch of the epoch's 400, the 331st, has a text of 2,048 tokens among texts of 64."""

import torch
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __len__(self):
        return 3200

    def __getitem__(self, index):
        return torch.ones(2048 if index == 2640 else 64, dtype=torch.long)


def pad(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


model = torch.nn.Sequential(torch.nn.Embedding(4000, 256), torch.nn.Linear(256, 4000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    for tokens in DataLoader(Documents(), batch_size=8, collate_fn=pad, num_workers=2):
        tokens = tokens.cuda()
        loss = torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
