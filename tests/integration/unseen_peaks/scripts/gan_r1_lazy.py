"""StyleGAN's order: R1 penalty each 16th step, path length each 8th, EMA of the generator, samples
at the end of the epoch. """

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.LeakyReLU(0.2))])

    def forward(self, z):
        return self.net(z)


G_map, G_syn = Mapping().cuda(), nn.Sequential(nn.Linear(128, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 3072)).cuda()
D = nn.Sequential(nn.Linear(3072, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).cuda()
ema = copy.deepcopy(G_syn).requires_grad_(False)
g_opt = torch.optim.Adam([*G_map.parameters(), *G_syn.parameters()], lr=2e-3, betas=(0.0, 0.99))
d_opt = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.0, 0.99))
for step in range(1000):
    real = torch.randn(256, 3072, device="cuda")
    G_syn.requires_grad_(False), D.requires_grad_(True)
    fake = G_syn(G_map(torch.randn(256, 128, device="cuda"))).detach()
    d_loss = F.softplus(D(fake)).mean() + F.softplus(-D(real)).mean()
    D.zero_grad(set_to_none=True)
    d_loss.backward()
    d_opt.step()
    if step % 16 == 0:
        real.requires_grad_(True)
        (g,) = torch.autograd.grad(D(real).sum(), real, create_graph=True)
        D.zero_grad(set_to_none=True)
        (10 / 2 * g.square().sum(1).mean() * 16).backward()
        d_opt.step()
    G_syn.requires_grad_(True), D.requires_grad_(False)
    g_loss = F.softplus(-D(G_syn(G_map(torch.randn(256, 128, device="cuda"))))).mean()
    g_opt.zero_grad(set_to_none=True)
    g_loss.backward()
    g_opt.step()
    if step % 8 == 0:
        w = G_map(torch.randn(128, 128, device="cuda"))
        img = G_syn(w)
        (g,) = torch.autograd.grad((img * torch.randn_like(img) / 32).sum(), w, create_graph=True)
        g_opt.zero_grad(set_to_none=True)
        (g.square().sum(1).sqrt().mean() * 2).backward()
        g_opt.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), G_syn.parameters()):
            a.lerp_(b, 0.001)
    if step % 400 == 399:
        with torch.no_grad():
            grid = [ema(G_map(torch.randn(100, 128, device="cuda"))) for _ in range(16)]
            grid = torch.cat(grid).clamp(-1, 1)
