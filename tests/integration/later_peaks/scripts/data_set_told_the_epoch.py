"""Progressive resizing inside of the data set, which is told the epoch."""

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 16000

    def __getitem__(self, index):
        size = 16 if self.epoch < 3 else 32
        return torch.zeros(3, size, size), index % 10


data = Images()
model = torch.nn.Sequential(
    torch.nn.Linear(3, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(5):
    data.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        out = model(x.cuda().flatten(2).transpose(1, 2)).mean(1)
        loss = torch.nn.functional.cross_entropy(out, y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
