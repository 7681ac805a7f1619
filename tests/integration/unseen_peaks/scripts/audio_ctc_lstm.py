"""CTC: conv front end, two BiLSTMs, utterances of 50 to 300 frames sorted in buckets; GradScaler
with fp16."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ASR(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(80, 128, 3, stride=2, padding=1)
        self.lstm = nn.LSTM(128, 128, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(256, 32)

    def forward(self, x):
        x = F.relu(self.conv(x)).transpose(1, 2)
        return self.out(self.lstm(x)[0]).log_softmax(-1)


rng = random.Random(0)
lengths = sorted(rng.randint(50, 300) if rng.random() > 0.002 else 1200 for _ in range(6400))
batches = [lengths[i : i + 16] for i in range(0, 6400, 16)]
model, scaler = ASR().cuda(), torch.amp.GradScaler("cuda")
opt = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    rng.shuffle(batches)
    for b in batches:
        x = torch.zeros(16, 80, max(b))
        for i, n in enumerate(b):
            x[i, :, :n] = 1.0
        target = torch.randint(1, 32, (16, 20))
        with torch.autocast("cuda", dtype=torch.float16):
            lp = model(x.cuda()).float().transpose(0, 1)
        loss = F.ctc_loss(lp, target.cuda(), torch.tensor(b) // 2, torch.full((16,), 20), zero_infinity=True)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
