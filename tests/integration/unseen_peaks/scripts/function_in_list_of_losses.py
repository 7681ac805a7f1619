"""Plain control: curriculum by a module attribute, EMA of weights by torch._foreach, cosine
schedule, evaluation accumulators. """

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 100)).cuda()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters())
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 800)
for epoch in range(4):
    for _ in range(200):
        x, y = torch.randn(256, 128).cuda(), torch.randint(0, 100, (256,)).cuda()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.01)
    preds, conf = [], torch.zeros(100, 100, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for _ in range(100):
            p = ema(torch.randn(512, 128).cuda()).softmax(-1)
            preds.append(p)
            y = torch.randint(0, 100, (512,)).cuda()
            conf += torch.bincount(y * 100 + p.argmax(-1), minlength=10000).view(100, 100)
    preds = torch.cat(preds)
    top = preds.topk(5, -1)
