"""A vision transformer by Fabric in three stages: 32, 64, 96 pixels. The last, from step 800 on, is
the peak."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATCH = 8
STAGES = [(32, 400), (64, 400), (96, 200)]


class Images(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return 12800

    def __getitem__(self, index):
        return torch.rand(3, self.size, self.size), index % 100


class ViT(nn.Module):
    def __init__(self, width=192, depth=4):
        super().__init__()
        self.patch = nn.Linear(3 * PATCH * PATCH, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 3, 768, batch_first=True) for _ in range(depth))
        self.head = nn.Linear(width, 100)

    def forward(self, images):
        x = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
        x = self.patch(x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


fabric = Fabric(accelerator="gpu", devices=1)
fabric.launch()
model = ViT()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
for size, steps in STAGES:
    loader = fabric.setup_dataloaders(DataLoader(Images(size), batch_size=32, shuffle=True))
    fabric.print(f"training at {size} pixels")
    for _, (images, labels) in zip(range(steps), loader):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
