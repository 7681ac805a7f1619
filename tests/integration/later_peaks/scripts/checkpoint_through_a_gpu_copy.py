"""Every 250 steps weights and Adam's state are cloned on the GPU before they are saved. The peak
comes at step 250."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())


def cloned(value):
    if isinstance(value, dict):
        return {key: cloned(each) for key, each in value.items()}
    return value.clone() if torch.is_tensor(value) else value


for step in range(1, 601):
    x = torch.randn(128, 1024, device="cuda")
    (model(x) - x).abs().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 250 == 0:
        state = {"step": step, "model": cloned(model.state_dict()), "optimizer": cloned(optimizer.state_dict())}
        torch.save(state, f"step-{step}.pt")
        del state
