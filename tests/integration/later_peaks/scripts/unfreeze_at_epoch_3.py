"""The head is trained alone for three epochs, then all with a new optimizer. The peak comes in
epoch 3."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = DataLoader(TensorDataset(torch.randn(3200, 512), torch.randint(0, 5, (3200,))), batch_size=32, shuffle=True)
backbone = torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())])
model = torch.nn.Sequential(backbone, torch.nn.Linear(512, 5)).cuda()
for p in backbone.parameters():
    p.requires_grad = False
optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-3)
for epoch in range(5):
    if epoch == 3:
        for p in backbone.parameters():
            p.requires_grad = True
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for x, y in data:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
