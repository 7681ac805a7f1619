"""accelerate with a batch size that doubles after epochs 2 and 4: a loader is prepared anew each
time."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_loader(accelerator, dataset, batch_size):
    return accelerator.prepare(DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True))


def main():
    accelerator = Accelerator()
    dataset = TensorDataset(torch.randn(9600, 32, 256), torch.randint(0, 10, (9600,)))
    model = nn.Sequential(
        nn.Linear(256, 512),
        nn.GELU(),
        nn.Linear(512, 512),
        nn.GELU(),
        nn.Linear(512, 512),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 512, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    batch_size = 32
    loader = get_loader(accelerator, dataset, batch_size)
    for epoch in range(6):
        if epoch in (2, 4):
            batch_size *= 4
            loader = get_loader(accelerator, dataset, batch_size)
            accelerator.print("batch size", batch_size)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


main()
