"""A model knows its trainer by weakref (no cycle) and asks it for the epoch: hard attention until
epoch 3, dense after. """

import weakref

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, trainer):
        super().__init__()
        self.trainer = weakref.ref(trainer)
        self.q = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(128, 128), nn.GELU())])
        self.k, self.o = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        if self.trainer().epoch < 3:
            k = k[:, ::8]
        return self.o((q @ k.transpose(1, 2)).softmax(-1) @ k)


class Trainer:
    def __init__(self):
        self.epoch, self.model = 0, None

    def fit(self, model, epochs=5):
        opt = torch.optim.Adam(model.parameters())
        for self.epoch in range(epochs):
            for _ in range(200):
                loss = model(torch.randn(16, 512, 128, device="cuda")).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()


trainer = Trainer()
trainer.fit(Net(trainer).cuda())
