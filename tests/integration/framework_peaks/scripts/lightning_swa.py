"""Lightning's stochastic weight averaging: a copy of the model on the GPU from four fifths of the
epochs on."""

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.1)) for _ in range(12)]
        self.net = nn.Sequential(*blocks, nn.Linear(1024, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


torch.manual_seed(1)
data = TensorDataset(torch.randn(6400, 1024), torch.randint(0, 10, (6400,)))
trainer = L.Trainer(
    max_epochs=10,
    accelerator="gpu",
    devices=1,
    callbacks=[StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=0.8, device=None)],
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Net(), DataLoader(data, batch_size=64, shuffle=True))
