"""Lightning's BackboneFinetuning: the backbone is frozen until epoch 3, and then joins the
optimizer."""

import lightning as L
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch.utils.data import DataLoader, TensorDataset


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True)
        self.backbone = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = torch.nn.Linear(384, 50)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self(x).flatten(0, 1), y.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.head.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(1600, 64, 384), torch.randint(0, 50, (1600, 64)))
trainer = L.Trainer(
    max_epochs=6,
    accelerator="gpu",
    devices=1,
    callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=3, backbone_initial_lr=1e-5)],
    enable_checkpointing=False,
    enable_progress_bar=False,
    logger=False,
)
trainer.fit(Tagger(), DataLoader(data, batch_size=16, shuffle=True))
