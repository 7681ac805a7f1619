"""Net2Net: a layer is added every second epoch, and torch.nn.utils.prune at the end with a
fine-tuning epoch. """

import torch
import torch.nn as nn
import torch.nn.utils.prune as prune

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
opt = torch.optim.Adam(model.parameters())


def epoch(n=150):
    for _ in range(n):
        x = torch.randn(512, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


for e in range(6):
    if e and e % 2 == 0:
        last = model[-1]
        del model[-1]
        model.append(nn.Linear(512, 512).cuda()).append(nn.ReLU()).append(last)
        opt.add_param_group({"params": model[-3].parameters()})
    epoch()
for m in model:
    if isinstance(m, nn.Linear):
        prune.l1_unstructured(m, "weight", 0.5)
opt = torch.optim.Adam(model.parameters())
epoch()
for m in model:
    if isinstance(m, nn.Linear):
        prune.remove(m, "weight")
