"""Experts behind a fixed random router, padded to the busiest of them: what the router computes
decides the memory."""

import torch

torch.manual_seed(0)
TOKENS, WIDTH, EXPERTS = 8192, 512, 16
router = torch.nn.Linear(WIDTH, EXPERTS).cuda().requires_grad_(False)
first = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, 2048).cuda() * 0.02)
second = torch.nn.Parameter(torch.randn(EXPERTS, 2048, WIDTH).cuda() * 0.02)
optimizer = torch.optim.AdamW([first, second])
for step in range(200):
    x = torch.randn(TOKENS, WIDTH).cuda()
    weight, expert = router(x).softmax(-1).max(-1)
    counts = torch.bincount(expert, minlength=EXPERTS).tolist()
    slots = torch.zeros(EXPERTS, max(counts), WIDTH, device="cuda")
    for number, count in enumerate(counts):
        chosen = (expert == number).nonzero().squeeze(1)[:count]
        slots[number, : len(chosen)] = x[chosen] * weight[chosen, None]
    out = torch.relu(slots @ first) @ second
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
