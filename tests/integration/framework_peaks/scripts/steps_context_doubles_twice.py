"""A plain loop of 2,000 steps whose context is 64 tokens, from step 1,000 on 128 and from step
1,700 on 256."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH = 3000, 192
corpus = torch.randint(0, VOCAB, (500_000,))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def get_batch(length, size=8):
    starts = torch.randint(len(corpus) - length - 1, (size,))
    rows = torch.stack([corpus[start : start + length + 1] for start in starts.tolist()]).cuda()
    return rows[:, :-1], rows[:, 1:]


model = Decoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
context = 64
for it in range(2000):
    if it in (1000, 1700):
        context *= 2
    x, y = get_batch(context)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
