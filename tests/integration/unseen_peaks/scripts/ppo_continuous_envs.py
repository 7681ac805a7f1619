"""Recurrent PPO: a GRU cell is unrolled over an episode's steps; minibatches are padded to the
longest episode, which host environments end. """

import numpy as np
import torch
import torch.nn as nn

torch.distributions.Distribution.set_default_validate_args(False)


class Envs:
    """Eight walkers: each falls unless it is pushed forward in time (action above 0.3)."""

    def reset(self):
        self.t, self.up = np.zeros(8, int), np.zeros(8)

    def step(self, action):
        self.t += 1
        for i in range(8):
            self.up[i] += -0.02 + 0.05 * float(action[i, 0] > 0.3)
        return (self.up < -0.5) | (self.t >= 200)


class Policy(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.gru, self.mu, self.v = nn.GRUCell(32, d), nn.Linear(d, 1), nn.Linear(d, 1)

    def forward(self, x, h):
        h = self.gru(x, h)
        return self.mu(h), self.v(h), h


envs, policy = Envs(), Policy().cuda()
opt = torch.optim.Adam(policy.parameters())
for it in range(15):
    envs.reset()
    h, obs, alive = torch.zeros(8, 256, device="cuda"), [], np.ones(8, bool)
    with torch.no_grad():
        while alive.any():
            o = torch.randn(8, 32).cuda()
            mu, v, h = policy(o, h)
            action = torch.distributions.Normal(mu, 0.1).sample().cpu().numpy()
            obs.append(o)
            alive &= ~envs.step(action)
    for _ in range(3):
        h, loss = torch.zeros(8, 256, device="cuda"), 0
        for o in obs:
            mu, v, h = policy(o, h)
            loss = loss + mu.square().mean() + v.square().mean()
        opt.zero_grad()
        (loss / len(obs)).backward()
        opt.step()
