"""accelerate: settings in an object with __slots__ (as attrs' define makes them); token dropping
ends after 3 epochs (full sequences). """

import torch
import torch.nn as nn
from accelerate import Accelerator
from attr import define
from torch.utils.data import DataLoader, TensorDataset


@define
class Settings:
    keep: float = 0.25
    width: int = 192


class ViT(nn.Module):
    def __init__(self, settings):
        super().__init__()
        d = settings.width
        self.settings = settings
        self.emb = nn.Linear(48, d)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True) for _ in range(3))
        self.head = nn.Linear(d, 10)

    def forward(self, x):
        x = self.emb(x)
        if self.training and self.settings.keep < 1:
            x = x[:, torch.randperm(x.shape[1], device=x.device)[: int(x.shape[1] * self.settings.keep)]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


accelerator, settings = Accelerator(mixed_precision="bf16"), Settings()
loader = DataLoader(
    TensorDataset(torch.randn(6400, 64, 48), torch.randint(0, 10, (6400,))), batch_size=64, shuffle=True
)
model = ViT(settings)
model, opt, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for epoch in range(5):
    if epoch == 3:
        settings.keep = 1.0
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        accelerator.backward(loss)
        opt.step()
