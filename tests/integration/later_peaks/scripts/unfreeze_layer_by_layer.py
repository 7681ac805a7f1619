"""ULMFiT: each epoch one more layer from the top is trained. The peak comes in the last epoch."""

import torch

layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(6)).cuda().requires_grad_(False)
head = torch.nn.Linear(1024, 10).cuda()
optimizer = torch.optim.AdamW(head.parameters())
for epoch in range(7):
    if epoch:
        layer = layers[-epoch].requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-3 / 2.6**epoch})
    for _ in range(60):
        x = torch.randn(2048, 1024, device="cuda")
        for each in layers:
            x = torch.relu(each(x))
        torch.nn.functional.cross_entropy(head(x), torch.zeros(2048, dtype=torch.long, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
