"""Sequences of 64 tokens, twice as long every 200 steps up to 512. The peak comes at step 600 of
800."""

import torch

VOCAB = 8000
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.0)
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 256), layer, torch.nn.Linear(256, VOCAB)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(800):
    length = 64 * 2 ** min(3, step // 200)
    tokens = torch.randint(0, VOCAB, (8, length + 1)).cuda()
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
