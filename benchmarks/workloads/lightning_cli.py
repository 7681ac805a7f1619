"""A Llama trained by Lightning, whose options are on the command line."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from llama import Texts, llama


class Model(LightningModule):
    """What is trained, and on what."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self._batch_size, self._model = batch_size, llama()

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> Any:
        """Return the loss of a batch."""
        return self._model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW over all."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> Any:
        """Return the texts, in batches."""
        return torch.utils.data.DataLoader(Texts(), self._batch_size)


LightningCLI(Model, save_config_callback=None)
