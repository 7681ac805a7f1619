"""The batch for an evaluation is worked out of the free memory after training, a tenth of it;
training in fp16 with GradScaler. """

import torch
import torch.nn as nn

net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.GELU())]).cuda()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(500):
    with torch.autocast("cuda", torch.float16):
        loss = net(torch.randn(512, 2048, device="cuda")).float().pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
torch.cuda.empty_cache()
free, total = torch.cuda.mem_get_info()
n = int(free * 0.1 / 2048 / 8)
with torch.no_grad():
    out = net(torch.randn(n, 2048, device="cuda"))
print(n)
