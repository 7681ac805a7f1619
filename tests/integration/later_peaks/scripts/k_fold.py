"""Five folds in one loop: the next model is made while the last one and its optimizer are still
referred to."""

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

data = TensorDataset(torch.randn(2000, 512), torch.randn(2000, 1))
folds = torch.arange(2000).chunk(5)
for k, held_out in enumerate(folds):
    rest = torch.cat([fold for i, fold in enumerate(folds) if i != k])
    model = torch.nn.Sequential(torch.nn.Linear(512, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for x, y in DataLoader(Subset(data, rest.tolist()), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
    with torch.no_grad():
        scores = [torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).item() for x, y in
                  DataLoader(Subset(data, held_out.tolist()), batch_size=32)]  # fmt: skip
    print(k, sum(scores) / len(scores))
