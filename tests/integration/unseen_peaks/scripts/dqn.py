"""DQN: replay on the GPU filled up to 20,000, epsilon-greedy, target network, a larger batch after
3,000 steps. """

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

N, D = 20_000, 256
obs_buf, next_buf = torch.zeros(N, D, device="cuda"), torch.zeros(N, D, device="cuda")
act_buf = torch.zeros(N, dtype=torch.long, device="cuda")
rew_buf, done_buf = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
make = lambda: nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)).cuda()
q, target = make(), make()
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=2.5e-4)
obs = torch.randn(D)
for t in range(5000):
    if random.random() < max(0.05, 1 - t / 2000):
        a = random.randrange(6)
    else:
        with torch.no_grad():
            a = int(q(obs.cuda().unsqueeze(0)).argmax(1).item())
    nxt, r, d = torch.randn(D), random.random(), random.random() < 0.01
    i = t % N
    obs_buf[i], next_buf[i], act_buf[i], rew_buf[i], done_buf[i] = obs.cuda(), nxt.cuda(), a, r, float(d)
    obs = torch.randn(D) if d else nxt
    if t < 500:
        continue
    batch = 64 if t < 3000 else 2048
    idx = torch.randint(0, min(t + 1, N), (batch,), device="cuda")
    with torch.no_grad():
        y = rew_buf[idx] + 0.99 * target(next_buf[idx]).max(1).values * (1 - done_buf[idx])
    loss = F.smooth_l1_loss(q(obs_buf[idx]).gather(1, act_buf[idx, None]).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 10.0)
    opt.step()
    if t % 500 == 0:
        target.load_state_dict(q.state_dict())
