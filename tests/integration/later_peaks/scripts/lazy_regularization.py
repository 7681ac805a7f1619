"""StyleGAN2's lazy R1: every 16th step the gradient penalty keeps a second graph. The peak is in
each 16th step."""

import torch

discriminator = torch.nn.Sequential(torch.nn.Linear(3072, 4096), torch.nn.Softplus(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.0, 0.99))
for step in range(1, 401):
    real, fake = torch.randn(512, 3072, device="cuda"), torch.randn(512, 3072, device="cuda")
    loss = torch.nn.functional.softplus(discriminator(fake)).mean()
    loss = loss + torch.nn.functional.softplus(-discriminator(real)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 16 == 0:
        real.requires_grad_(True)
        (grad,) = torch.autograd.grad(discriminator(real).sum(), real, create_graph=True)
        optimizer.zero_grad()
        (16 * 5 * grad.square().sum(1).mean()).backward()
        optimizer.step()
