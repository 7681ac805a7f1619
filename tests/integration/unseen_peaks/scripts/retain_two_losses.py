"""Two losses of one graph: loss1.backward(retain_graph=True), every 30th step a third, of the
features."""

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))])
        self.a, self.b = nn.Linear(512, 10), nn.Linear(512, 512)

    def forward(self, x):
        h = self.f(x)
        return h, self.a(h), self.b(h)


net = Net().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-4)
for step in range(900):
    x = torch.randn(1024, 512, device="cuda")
    h, a, b = net(x)
    opt.zero_grad()
    a.logsumexp(1).mean().backward(retain_graph=True)
    if step % 30 == 29:
        (h @ h.T).pow(2).mean().backward(retain_graph=True)
    b.pow(2).mean().backward()
    opt.step()
