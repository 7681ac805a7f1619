"""Lightning: forward reads self.current_epoch (deep supervision from epoch 3 on)."""

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU())], nn.Linear(256, 1024))
        self.b, self.aux = nn.Linear(1024, 256), nn.Linear(1024, 16384)


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        h = torch.relu(self.net.a(x))
        out = self.net.b(h)
        if self.current_epoch >= 3:
            out = out + self.net.aux(h).logsumexp(-1, keepdim=True)
        return out

    def training_step(self, batch, i):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


loader = DataLoader(TensorDataset(torch.randn(12800, 256)), batch_size=128, shuffle=True)
L.Trainer(
    accelerator="gpu", devices=1, max_epochs=5, logger=False, enable_checkpointing=False, enable_progress_bar=False
).fit(Lit(), loader)
