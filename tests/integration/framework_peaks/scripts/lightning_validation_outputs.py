"""Lightning keeps the embeddings of each validation batch and compares all with all when the epoch
is over."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Contrastive(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256))
        self.right = nn.Sequential(nn.Linear(384, 1024), nn.ReLU(), nn.Linear(1024, 256))
        self.outputs = []

    def embed(self, batch):
        return F.normalize(self.left(batch[0]), dim=1), F.normalize(self.right(batch[1]), dim=1)

    def training_step(self, batch, batch_idx):
        a, b = self.embed(batch)
        logits = a @ b.T / 0.07
        labels = torch.arange(len(a), device=self.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self.embed(batch))

    def on_validation_epoch_end(self):
        a = torch.cat([x for x, _ in self.outputs])
        b = torch.cat([y for _, y in self.outputs])
        similarity = a @ b.T
        right = similarity.argsort(dim=1, descending=True)[:, :10] == torch.arange(len(a), device=self.device)[:, None]
        self.log("recall@10", right.any(dim=1).float().mean())
        self.outputs.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def pairs(n):
    return TensorDataset(torch.randn(n, 512), torch.randn(n, 384))


trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=4, enable_progress_bar=False, enable_checkpointing=False, logger=False
)
trainer.fit(
    Contrastive(), DataLoader(pairs(38400), batch_size=128, shuffle=True), DataLoader(pairs(4096), batch_size=128)
)
