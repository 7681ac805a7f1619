"""FastSpeech-like: trained with true durations, at the end synthesis with predicted ones
(repeat_interleave)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class TTS(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.e = nn.Embedding(80, d)
        self.enc = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.dur = nn.Linear(d, 1)
        self.dec = nn.Sequential(
            nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, 4 * d), nn.ReLU(), nn.Linear(4 * d, 80)
        )

    def encode(self, t):
        h = self.enc(self.e(t))
        return h, self.dur(h).squeeze(-1)

    def decode(self, h, dur):
        return self.dec(torch.repeat_interleave(h, dur, dim=0))


net = TTS().cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(400):
    t, d = torch.randint(0, 80, (400,)), torch.full((400,), 5)
    h, logd = net.encode(t.cuda())
    mel = net.decode(h, d.cuda())
    loss = mel.pow(2).mean() + F.mse_loss(logd, (d.float() + 1).log().cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
net.eval()
with torch.no_grad():
    h, logd = net.encode(torch.randint(0, 80, (6000,)).cuda())
    d = (torch.exp(logd) - 1).round().clamp(min=0).long()
    mel = net.decode(h, d)
    print(mel.shape)
