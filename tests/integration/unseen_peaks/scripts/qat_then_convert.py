"""Eager QAT: float training, then prepare_qat with observers for two epochs; observers off in the
last one."""

import torch
import torch.ao.quantization as tq
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.body = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )

    def forward(self, x):
        return self.dequant(self.body(self.quant(x)))


model = Net().cuda()


def epoch(opt):
    for _ in range(200):
        x, y = torch.randn(512, 256).cuda(), torch.randint(0, 10, (512,)).cuda()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


epoch(torch.optim.Adam(model.parameters()))
model.train()
model.qconfig = tq.get_default_qat_qconfig("x86")
tq.prepare_qat(model, inplace=True)
model.cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-5)
epoch(opt)
model.apply(tq.disable_observer)
epoch(opt)
