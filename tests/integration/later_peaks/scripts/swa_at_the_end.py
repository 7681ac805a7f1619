"""Stochastic weight averaging over the last quarter of 12 epochs, then batch norm's statistics on
large batches."""

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(3200, 512), torch.randint(0, 10, (3200,)))
model = torch.nn.Sequential(
    torch.nn.Linear(512, 2048), torch.nn.BatchNorm1d(2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
averaged, swa_scheduler = None, SWALR(optimizer, swa_lr=0.05)
for epoch in range(12):
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    if epoch >= 9:
        averaged = averaged or AveragedModel(model)
        averaged.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(DataLoader(data, batch_size=3200), averaged, device=torch.device("cuda"))
torch.save(averaged.state_dict(), "swa.pt")
