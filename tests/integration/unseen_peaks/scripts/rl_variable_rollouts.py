"""REINFORCE: episodes of lengths drawn on the host, whole episode in one forward; the return's
baseline network; replay list of GPU states capped at 200 episodes. """

import collections
import random

import torch
import torch.nn as nn

random.seed(2)
pi = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 8)).cuda()
v = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1)).cuda()
opt = torch.optim.Adam([*pi.parameters(), *v.parameters()])
replay = collections.deque(maxlen=200)
for episode in range(800):
    n = min(4000, int(random.expovariate(1 / 400)) + 10)
    s = torch.randn(n, 64).cuda()
    a = torch.randint(0, 8, (n, 1)).cuda()
    r = torch.randn(n, 1).cuda()
    replay.append((s, a, r))
    lp = pi(s).log_softmax(-1).gather(1, a)
    adv = r - v(s)
    loss = -(lp * adv.detach()).mean() + adv.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if episode % 100 == 99:
        k = random.sample(list(replay), 64)
        s, a, r = (torch.cat([e[i] for e in k]) for i in range(3))
        lp = pi(s).log_softmax(-1).gather(1, a)
        opt.zero_grad()
        (-(lp * r).mean()).backward()
        opt.step()
