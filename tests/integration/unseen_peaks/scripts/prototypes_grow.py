"""Class-incremental: the encoder's prototypes grow with each task: a new Parameter in place of the
old one."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))
        self.proto = nn.Parameter(torch.randn(500, 256))

    def forward(self, x):
        z = F.normalize(self.enc(x), dim=1)
        return 10 * (z @ F.normalize(self.proto, dim=1).T)


net = Net().cuda()
n = 500
for task in range(8):
    if task:
        n += 500
        net.proto = nn.Parameter(torch.cat([net.proto.data, torch.randn(500, 256, device="cuda")]))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(150):
        x = torch.randn(1024, 256, device="cuda")
        y = torch.randint(0, n, (1024,)).cuda()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(task)
