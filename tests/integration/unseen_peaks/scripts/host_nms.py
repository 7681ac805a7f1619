"""Two stages: the detector's scores go to the host (numpy), boxes above 0.5 are cropped and
classified by a second, larger network. """

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

det = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 400)).cuda()
cls = nn.Sequential(nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 100)).cuda()
opt = torch.optim.Adam([*det.parameters(), *cls.parameters()])
for step in range(300):
    a = F.binary_cross_entropy_with_logits(
        det(torch.randn(64, 1024, device="cuda")), torch.rand(64, 400).cuda().round()
    )
    b = F.cross_entropy(cls(torch.randn(64, 3072, device="cuda")), torch.randint(0, 100, (64,)).cuda())
    opt.zero_grad()
    (a + b).backward()
    opt.step()
with torch.no_grad():
    for i in range(40):
        feats = torch.randn(64, 1024, device="cuda")
        scores = torch.sigmoid(det(feats)).cpu().numpy()
        keep = [(j, int(k)) for j in range(64) for k in np.flatnonzero(scores[j] > 0.5)]
        if keep:
            crops = torch.stack([torch.randn(3072) for _ in keep]).cuda()
            labels = cls(crops).argmax(1)
