"""WGAN: the generator, whose step goes through both networks, is trained after every fifth step of
the critic."""

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(3200, 3072)), batch_size=64, shuffle=True)
generator = torch.nn.Sequential(torch.nn.Linear(128, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 3072)).cuda()
critic = torch.nn.Sequential(torch.nn.Linear(3072, 1024), torch.nn.LeakyReLU(0.2), torch.nn.Linear(1024, 1)).cuda()
g_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
c_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
for epoch in range(4):
    for i, (real,) in enumerate(loader):
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 128, device="cuda"))
        c_optimizer.zero_grad()
        (critic(fake).mean() - critic(real.cuda()).mean()).backward()
        c_optimizer.step()
        for p in critic.parameters():
            p.data.clamp_(-0.01, 0.01)
        if i % 5 == 0:
            g_optimizer.zero_grad()
            (-critic(generator(torch.randn(256, 128, device="cuda"))).mean()).backward()
            g_optimizer.step()
