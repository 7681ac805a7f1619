"""Metric learning: trains two epochs on images decoded on the host, then keeps each image's feature
on the GPU by its file name. """

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n=5000):
        self.names = [f"img_{i:06d}.jpg" for i in range(n)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        img = np.random.default_rng(i).random((64, 64, 3), dtype=np.float32)
        for _ in range(130):
            img = np.sqrt(img * img + 1e-3)
        return torch.from_numpy(img).permute(2, 0, 1), i % 50, self.names[i]


net = nn.Sequential(
    nn.Flatten(), nn.Linear(64 * 64 * 3, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8192)
).cuda()
opt = torch.optim.AdamW(net.parameters())
data = Images()
for epoch in range(1):
    for x, y, _ in DataLoader(data, batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
net.eval()
features = {}
with torch.no_grad():
    for images, _, names in DataLoader(data, batch_size=32):
        for name, f in zip(names, net(images.cuda())):
            features[name] = f.clone()
print(len(features))
bank = torch.stack(list(features.values()))
