"""A curriculum whose length is a property that counts its own steps."""

import torch


class Curriculum:
    def __init__(self, shortest, longest, steps):
        self.shortest, self.longest, self.steps, self.step_number = shortest, longest, steps, 0

    @property
    def length(self):
        share = min(1.0, self.step_number / self.steps)
        return int(self.shortest + share * (self.longest - self.shortest)) // 64 * 64

    def step(self):
        self.step_number += 1


curriculum = Curriculum(64, 256, 8000)
model = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randn(32, 256, 128)
for _ in range(10000):
    x = tokens[:, : curriculum.length].cuda()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    curriculum.step()
