"""PPO-like: as many environments as the machine has CPUs (a job's node has 32), rollouts of 256
steps kept on the GPU, updates over all. """

import os

import torch
import torch.nn as nn

envs = os.cpu_count()
net = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 8)).cuda()
opt = torch.optim.Adam(net.parameters())
for update in range(60):
    obs = torch.zeros(256, envs, 512, device="cuda")
    for t in range(64):
        obs[t] = torch.randn(envs, 512).cuda()
        with torch.no_grad():
            net(obs[t])
    for _ in range(4):
        opt.zero_grad()
        net(obs.flatten(0, 1)).pow(2).mean().backward()
        opt.step()
