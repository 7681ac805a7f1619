"""Fabric: PCGrad of three tasks (retain_graph, gradients flattened and projected), a fourth task
from epoch 2 on. """

import torch
import torch.nn as nn
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
fabric.launch()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(1024, 16) for _ in range(4))

    def forward(self, x, tasks):
        h = self.body(x)
        return [self.heads[t](h) for t in range(tasks)]


model = Net()
opt = torch.optim.AdamW(model.parameters())
model, opt = fabric.setup(model, opt)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(12800, 128)), batch_size=128, shuffle=True))
for epoch in range(4):
    tasks = 3 if epoch < 2 else 4
    for (x,) in loader:
        outs = model(x, tasks)
        shared = list(model.body.parameters())
        grads = []
        for t, o in enumerate(outs):
            opt.zero_grad()
            fabric.backward(o.square().mean(), retain_graph=t < tasks - 1)
            grads.append(torch.cat([p.grad.flatten() for p in shared]))
        final = []
        for i, g in enumerate(grads):
            g = g.clone()
            for j, other in enumerate(grads):
                if i != j:
                    dot = g @ other
                    g = g - torch.clamp(dot, max=0) * other / other.square().sum().clamp_min(1e-12)
            final.append(g)
        merged = torch.stack(final).sum(0)
        at = 0
        for p in shared:
            p.grad = merged[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        opt.step()
