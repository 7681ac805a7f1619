"""Every 300 steps all weights and gradients are concatenated for histograms. The peak comes at step
300."""

import torch

blocks = [torch.nn.Linear(1024, 1024) for _ in range(12)]
model = torch.nn.Sequential(*blocks).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 701):
    x = torch.randn(64, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    if step % 300 == 0:
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        for name, values in (("weights", weights), ("gradients", gradients)):
            print(name, torch.histc(values.abs().log10(), bins=50).tolist()[:3])
        del weights, gradients, values
    optimizer.step()
    optimizer.zero_grad()
