"""A VQGAN's order: 400 steps of reconstruction, then the discriminator is trained too. The peak
comes at step 400."""

import torch

autoencoder = torch.nn.Sequential(torch.nn.Linear(4096, 512), torch.nn.SiLU(), torch.nn.Linear(512, 4096)).cuda()
discriminator = torch.nn.Sequential(torch.nn.Linear(4096, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1)).cuda()
opt_ae = torch.optim.Adam(autoencoder.parameters(), lr=4.5e-6)
opt_disc = torch.optim.Adam(discriminator.parameters(), lr=4.5e-6)
disc_start = 400
for global_step in range(700):
    x = torch.randn(1024, 4096, device="cuda")
    y = autoencoder(x)
    loss = (x - y).abs().mean()
    if global_step >= disc_start:
        loss = loss - 0.1 * discriminator(y).mean()
    opt_ae.zero_grad()
    loss.backward()
    opt_ae.step()
    if global_step >= disc_start:
        hinge = torch.relu(1 - discriminator(x)).mean() + torch.relu(1 + discriminator(y.detach())).mean()
        opt_disc.zero_grad()
        hinge.backward()
        opt_disc.step()
