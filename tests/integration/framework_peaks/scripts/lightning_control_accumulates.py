"""Lightning with gradients accumulated over 4 batches from the start, clipped; a checkpoint of each
epoch."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(256, 8000)

    def training_step(self, batch, _):
        (tokens,) = batch
        logits = self.head(self.encoder(self.embed(tokens[:, :-1])))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randint(0, 8000, (4800, 64))), batch_size=8, shuffle=True)
trainer = Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=2,
    accumulate_grad_batches=4,
    gradient_clip_val=1.0,
    logger=CSVLogger("logs"),
    callbacks=[ModelCheckpoint(dirpath="ckpt", save_last=True), LearningRateMonitor()],
    enable_progress_bar=False,
)
trainer.fit(Encoder(), loader)
