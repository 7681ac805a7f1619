"""Detection: varying numbers of boxes an image (lists of targets), pairwise IoU matrix between
anchors and boxes; crowded images are rare. """

import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

random.seed(3)
torch.manual_seed(3)
counts = [random.randint(1, 12) for _ in range(6000)]
counts[5400] = 900


class Data(Dataset):
    def __len__(self):
        return 6000

    def __getitem__(self, i):
        return torch.randn(3, 32, 32), torch.rand(counts[i], 4)


def collate(b):
    return torch.stack([x for x, _ in b]), [t for _, t in b]


net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 4000)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.01)
for epoch in range(2):
    for x, ts in DataLoader(Data(), batch_size=8, shuffle=True, collate_fn=collate):
        p = net(x.cuda()).view(8, 1000, 4).sigmoid()
        loss = 0
        for q, t in zip(p, ts):
            t = t.cuda()
            lt, rb = torch.max(q[:, None, :2], t[:, :2]), torch.min(q[:, None, 2:], t[:, 2:])
            wh = (rb - lt).clamp(min=0)
            loss = loss + (wh[..., 0] * wh[..., 1]).max(1).values.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
