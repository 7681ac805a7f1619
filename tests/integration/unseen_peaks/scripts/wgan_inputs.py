"""GAN with n_critic=5; gradients by backward(inputs=...), no detach."""

import torch
import torch.nn as nn

G = nn.Sequential(
    nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3072), nn.Tanh()
).cuda()
D = nn.Sequential(
    nn.Linear(3072, 1024),
    nn.LeakyReLU(0.2),
    nn.Linear(1024, 1024),
    nn.LeakyReLU(0.2),
    nn.Linear(1024, 1024),
    nn.LeakyReLU(0.2),
    nn.Linear(1024, 1),
).cuda()
g, d = (torch.optim.RMSprop(m.parameters(), lr=5e-5) for m in (G, D))
gp, dp = list(G.parameters()), list(D.parameters())
for it in range(300):
    for _ in range(5):
        real = torch.randn(512, 3072, device="cuda")
        d.zero_grad()
        loss = D(G(torch.randn(512, 128, device="cuda"))).mean() - D(real).mean()
        loss.backward(inputs=dp)
        d.step()
    g.zero_grad()
    d.zero_grad()
    (-D(G(torch.randn(512, 128, device="cuda"))).mean()).backward(inputs=gp)
    g.step()
