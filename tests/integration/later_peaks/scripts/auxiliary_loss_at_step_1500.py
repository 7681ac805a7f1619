"""2,000 steps; from step 1,500 on a second, larger loss is added. The peak comes at step 1,500."""

import torch

trunk = torch.nn.Linear(256, 256).cuda()
decoder = torch.nn.Linear(256, 50_000).cuda()
optimizer = torch.optim.SGD([*trunk.parameters(), *decoder.parameters()], lr=0.01)
for step in range(2000):
    hidden = torch.relu(trunk(torch.randn(1024, 256, device="cuda")))
    loss = hidden.square().mean()
    if step >= 1500:
        loss = loss + 0.1 * decoder(hidden).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
