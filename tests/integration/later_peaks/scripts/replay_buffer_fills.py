"""DQN: learning begins at 400 frames; the buffer on the GPU is full, and the peak there, at 1,500
of 2,000."""

import random
from collections import deque

import torch

CAPACITY, LEARN_FROM, BATCH = 1500, 400, 32
net, target = (torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4 * 84 * 84, 256)).cuda() for _ in range(2))
optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4)
buffer = deque(maxlen=CAPACITY)
for frame in range(2000):
    buffer.append(torch.zeros(1, 4, 84, 84, device="cuda"))
    if frame < LEARN_FROM:
        continue
    batch = torch.cat(random.sample(buffer, BATCH))
    with torch.no_grad():
        expected = target(batch).max(1).values
    loss = torch.nn.functional.smooth_l1_loss(net(batch).max(1).values, expected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if frame % 500 == 0:
        target.load_state_dict(net.state_dict())
