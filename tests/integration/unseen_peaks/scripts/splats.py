"""Gaussian splats: densify every 100 steps, parameters and Adam's state replaced by longer ones."""

import torch
import torch.nn as nn

params = {
    "xyz": nn.Parameter(torch.randn(50_000, 3, device="cuda")),
    "feat": nn.Parameter(torch.randn(50_000, 48, device="cuda")),
    "op": nn.Parameter(torch.randn(50_000, 1, device="cuda")),
}
opt = torch.optim.Adam([{"params": [p], "name": n, "lr": 1e-3} for n, p in params.items()])


def densify(k):
    for g in opt.param_groups:
        old = g["params"][0]
        st = opt.state.pop(old, None)
        more = old.detach()[:k]
        new = nn.Parameter(torch.cat([old.detach(), more]))
        st["exp_avg"] = torch.cat([st["exp_avg"], torch.zeros_like(more)])
        st["exp_avg_sq"] = torch.cat([st["exp_avg_sq"], torch.zeros_like(more)])
        g["params"][0] = new
        opt.state[new] = st
        params[g["name"]] = new


for it in range(1, 3001):
    sel = torch.randint(0, params["xyz"].shape[0], (2000,), device="cuda")
    loss = params["xyz"][sel].pow(2).mean() + params["feat"][sel].mean() + params["op"][sel].sigmoid().mean()
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    if it % 100 == 0:
        densify(20_000)
    if it % 1000 == 0:
        print(it, len(params["xyz"]))
