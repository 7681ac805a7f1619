"""Lightning, validated after each epoch with the batch size of the training. Training is the
peak."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, width=1024, classes=20):
        super().__init__()
        self.save_hyperparameters()
        layers = []
        for _ in range(8):
            layers += [torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU()]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def data(n):
    return TensorDataset(torch.randn(n, 1024), torch.randint(0, 20, (n,)))


train = DataLoader(data(51200), batch_size=256, shuffle=True, drop_last=True)
valid = DataLoader(data(5120), batch_size=256)
trainer = L.Trainer(max_epochs=4, accelerator="gpu", devices=1, enable_progress_bar=False, logger=False)
trainer.fit(Classifier(), train, valid)
