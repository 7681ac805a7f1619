"""Twelve epochs on patches of 112 pixels, the last one on 224: four times the patches. The peak
comes at the end."""

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return 320

    def __getitem__(self, index):
        return torch.zeros(3, self.size, self.size), index % 10


class Vit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Linear(3 * 14 * 14, 384)
        self.block = torch.nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True)
        self.head = torch.nn.Linear(384, 10)

    def forward(self, x):
        x = x.unfold(2, 14, 14).unfold(3, 14, 14).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return self.head(self.block(self.patches(x)).mean(1))


model = Vit().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(13):
    for x, y in DataLoader(Images(224 if epoch == 12 else 112), batch_size=32):
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
