"""A context manager tests the model on 20,000 samples at its end."""

import torch


class Run:
    def __init__(self, model, x):
        self.model, self.x = model, x

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            with torch.no_grad():
                print("test", self.model(self.x.cuda()).mean().item())


model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
with Run(model, torch.randn(20000, 256)):
    for step in range(20000):
        x = torch.randn(64, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
