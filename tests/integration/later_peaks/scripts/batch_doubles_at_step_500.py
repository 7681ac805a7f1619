"""The batch size is 32, and 64 from step 500 of 700 on. The peak comes at step 500."""

import torch

model = torch.nn.Sequential(torch.nn.Embedding(10000, 256), torch.nn.Linear(256, 10000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(700):
    batch_size = 32 if step < 500 else 64
    tokens = torch.randint(0, 10000, (batch_size, 128), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(tokens).view(-1, 10000), tokens.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
