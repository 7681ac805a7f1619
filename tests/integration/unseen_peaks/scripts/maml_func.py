"""MAML by torch.func.functional_call with 5 inner steps of second order; first order only for the
first 300 tasks. """

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5)).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for it in range(400):
    second = it >= 300
    opt.zero_grad()
    for task in range(2):
        xs, ys = torch.randn(25, 64).cuda(), torch.randint(0, 5, (25,)).cuda()
        params = dict(model.named_parameters())
        for _ in range(5):
            loss = F.cross_entropy(functional_call(model, params, (xs,)), ys)
            grads = torch.autograd.grad(loss, params.values(), create_graph=second)
            params = {n: p - 0.01 * g for (n, p), g in zip(params.items(), grads)}
        F.cross_entropy(functional_call(model, params, (xs,)), ys).backward()
    opt.step()
