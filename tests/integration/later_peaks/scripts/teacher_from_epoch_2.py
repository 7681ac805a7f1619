"""Distillation begins with epoch 2: then a teacher four times as wide is loaded and asked for its
logits."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = DataLoader(TensorDataset(torch.randn(3200, 256), torch.randint(0, 1000, (3200,))), batch_size=32, shuffle=True)


def network(width):
    return torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, 1000)).cuda()


student, teacher = network(2048), None
optimizer = torch.optim.Adam(student.parameters())
for epoch in range(4):
    if epoch == 2:
        teacher = network(8192).eval()
    for x, y in data:
        x, y = x.cuda(), y.cuda()
        out = student(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        if teacher is not None:
            with torch.no_grad():
                soft = teacher(x).div(4).softmax(-1)
            loss = loss + 16 * torch.nn.functional.kl_div(out.div(4).log_softmax(-1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
