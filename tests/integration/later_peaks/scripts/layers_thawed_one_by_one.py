"""Gradual unfreezing: in each epoch all layers are gone through, those whose turn it is get
gradients."""

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32000, 512), torch.randn(32000, 512)), batch_size=32, shuffle=True)
layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(12)).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4)
for epoch in range(8):
    for depth, layer in enumerate(reversed(layers)):
        for p in layer.parameters():
            p.requires_grad = depth <= 2 * epoch
    for x, y in loader:
        h = x.cuda()
        for layer in layers:
            h = layer(h).relu()
        loss = torch.nn.functional.mse_loss(h, y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
