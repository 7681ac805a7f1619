"""fastai: a callback raises a class attribute Config.samples that the model's dropout samples
follow (multi-sample dropout). """

import torch
import torch.nn as nn
from fastai.basics import Callback, DataLoaders, Learner


class Config:
    samples = 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = (
            nn.Sequential(
                *[m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU())], nn.Linear(64, 1024), nn.ReLU()
            ),
            nn.Dropout(0.3),
            nn.Linear(1024, 1024),
        )
        self.out = nn.Linear(1024, 10)

    def forward(self, x):
        h = self.body(x)
        return torch.stack([self.out(torch.relu(self.head(self.drop(h)))) for _ in range(Config.samples)]).mean(0)


class MoreSamples(Callback):
    def before_epoch(self):
        Config.samples = 1 if self.epoch < 3 else 8


data = [(torch.randn(64), i % 10) for i in range(12800)]
dls = DataLoaders.from_dsets(data, data[:1280], bs=256, device="cuda", num_workers=0)
Learner(dls, Net(), loss_func=nn.CrossEntropyLoss(), cbs=[MoreSamples()]).fit(5)
