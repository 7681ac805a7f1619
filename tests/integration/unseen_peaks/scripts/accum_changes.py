"""Gradient accumulation 1, then 4; micro-batch 32, then 48; a param group added late; a bigger eval
batch at the end; fp32 softmax over everything. """

import torch
import torch.nn as nn
import torch.nn.functional as F

body = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))]).cuda()
head = nn.Linear(512, 30000).cuda()
opt = torch.optim.AdamW(head.parameters(), lr=1e-4)
body.requires_grad_(False)
for step in range(900):
    if step == 500:
        body.requires_grad_(True)
        opt.add_param_group({"params": body.parameters(), "lr": 1e-5})
    acc, mb = (1, 128) if step < 300 else (4, 192)
    for _ in range(acc):
        with torch.autocast("cuda", torch.bfloat16):
            logits = head(body(torch.randn(mb, 512, device="cuda")))
        F.cross_entropy(logits.float(), torch.randint(0, 30000, (mb,)).cuda()).backward()
    torch.nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
    opt.step()
    opt.zero_grad()
    if step % 100 == 99:
        torch.cuda.empty_cache()
