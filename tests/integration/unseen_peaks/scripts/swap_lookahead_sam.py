"""SAM (two steps), Lookahead slow weights from epoch 3, SWA copy from epoch 5, evaluation with
swapped weights."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.ReLU())], nn.Linear(1024, 10)).cuda()
base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(6400, 1024), torch.randint(0, 10, (6400,))), batch_size=64)
slow = swa = None
for epoch in range(8):
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        base.zero_grad()
        F.cross_entropy(net(x), y).backward()
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        eps = [p.grad * 0.05 / (norm + 1e-12) for p in net.parameters()]
        with torch.no_grad():
            [p.add_(e) for p, e in zip(net.parameters(), eps)]
        base.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            [p.sub_(e) for p, e in zip(net.parameters(), eps)]
        base.step()
        if epoch >= 3 and i % 5 == 0:
            with torch.no_grad():
                slow = slow or [p.clone() for p in net.parameters()]
                for s, p in zip(slow, net.parameters()):
                    s.add_(p - s, alpha=0.5)
                    p.copy_(s)
    if epoch >= 5:
        swa = swa or torch.optim.swa_utils.AveragedModel(net)
        swa.update_parameters(net)
    net.eval()
    kept = copy.deepcopy(net.state_dict()) if epoch == 7 else None
    if swa:
        net.load_state_dict(swa.module.state_dict())
    with torch.no_grad():
        c = sum((net(x.cuda()).argmax(1).cpu() == y).sum().item() for x, y in loader)
    net.train()
