"""Lightning stops early by the validation loss and then tests the best weights in large batches,
the peak."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Embedding(3000, 256),
            nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True),
            nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True),
        )
        self.head = nn.Linear(256, 5)

    def forward(self, tokens):
        return self.head(self.net(tokens).mean(1))

    def _loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch, _):
        return self._loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self._loss(batch))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self._loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


def loader(size, batch_size, shuffle=False):
    data = TensorDataset(torch.randint(0, 3000, (size, 64)), torch.randint(0, 5, (size,)))
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle)


checkpoint = ModelCheckpoint("best", monitor="val_loss")
trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=20,
    callbacks=[EarlyStopping("val_loss", patience=3), checkpoint],
    enable_progress_bar=False,
    logger=False,
)
model = Model()
trainer.fit(model, loader(3200, 16, shuffle=True), loader(320, 16))
trainer.test(model, loader(2048, 512), ckpt_path="best")
