"""Inside the epoch, every 200 steps, an evaluation with a larger batch. The peak comes after step
200."""

import torch
from torch.utils.data import DataLoader, TensorDataset

train = DataLoader(TensorDataset(torch.randint(0, 16000, (8000, 64))), batch_size=8, shuffle=True, drop_last=True)
valid = DataLoader(TensorDataset(torch.randint(0, 16000, (256, 64))), batch_size=64)
model = torch.nn.Sequential(torch.nn.Embedding(16000, 128), torch.nn.Linear(128, 16000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
global_step = 0
for epoch in range(1):
    for (tokens,) in train:
        tokens = tokens.cuda()
        loss = torch.nn.functional.cross_entropy(model(tokens).view(-1, 16000), tokens.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        global_step += 1
        if global_step % 200 == 0:
            model.eval()
            with torch.no_grad():
                losses = []
                for (tokens,) in valid:
                    tokens = tokens.cuda()
                    losses.append(torch.nn.functional.cross_entropy(model(tokens).view(-1, 16000), tokens.view(-1)))
            print(global_step, torch.stack(losses).mean().item())
            model.train()
