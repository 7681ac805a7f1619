"""A batch size ramp as of GPT-3: from 8 to 128 by 8 every 60 steps. The peak comes after step 900
of 1,000."""

import torch

START, INCREMENT, FINAL, EVERY = 8, 8, 128, 60


def batch_size_at(step):
    return min(FINAL, START + step // EVERY * INCREMENT)


class Model(torch.nn.Module):
    def __init__(self, vocab=4000, width=256):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )
        self.head = torch.nn.Linear(width, vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.mlp(x))


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randint(0, 4000, (100_000,))
for step in range(1000):
    starts = torch.randint(0, len(data) - 65, (batch_size_at(step),))
    batch = torch.stack([data[i : i + 65] for i in starts]).cuda()
    loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
