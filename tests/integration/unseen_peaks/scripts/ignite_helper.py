"""ignite: feature pyramid heads through a helper object that is not a module (its method reads a
module- level flag). """

import torch
import torch.nn as nn
import torch.nn.functional as F
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader, TensorDataset

MIXUP_FEATURES = False


class Mixer:
    def __call__(self, h):
        if MIXUP_FEATURES:
            other = h[torch.randperm(len(h), device=h.device)]
            h = torch.cat([h, 0.5 * (h + other), 0.3 * h + 0.7 * other])
        return h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU())], nn.Linear(256, 1024))
        self.b, self.mix = nn.Linear(1024, 1024), Mixer()

    def forward(self, x):
        return self.b(F.relu(self.mix(self.a(x))))


model = Net().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def step(engine, batch):
    loss = model(batch[0].cuda()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


trainer = Engine(step)


@trainer.on(Events.EPOCH_STARTED(once=4))
def start_mixing(engine):
    global MIXUP_FEATURES
    MIXUP_FEATURES = True


trainer.run(DataLoader(TensorDataset(torch.randn(25600, 256)), batch_size=128), max_epochs=5)
