"""ReduceLROnPlateau: as soon as the rate has been reduced twice, the backbone is unfrozen; a
replay/hard- example list by loss. """

import torch
import torch.nn as nn

backbone = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(512, 512), nn.ReLU())]).cuda().requires_grad_(False)
head = nn.Linear(512, 10).cuda()
opt = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.1)
unfrozen = False
for epoch in range(12):
    total = 0.0
    for _ in range(60):
        x, y = torch.randn(2048, 512, device="cuda"), torch.randint(0, 10, (2048,), device="cuda")
        loss = nn.functional.cross_entropy(head(backbone(x)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    sched.step(total / 60)
    if opt.param_groups[0]["lr"] < 2e-3 and not unfrozen:
        unfrozen = True
        backbone.requires_grad_(True)
        opt.add_param_group({"params": backbone.parameters(), "lr": 1e-4})
