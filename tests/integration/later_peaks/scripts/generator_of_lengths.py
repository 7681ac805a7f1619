"""Batches come from a generator that goes from short to long."""

import torch


def batches(tokens, lengths=(64, 128, 256), each=3000):
    for length in lengths:
        for _ in range(each):
            starts = torch.randint(0, len(tokens) - length, (16,)).tolist()
            yield torch.stack([tokens[at : at + length] for at in starts])


tokens = torch.randint(0, 500, (100_000,))
embedding, model = torch.nn.Embedding(500, 256).cuda(), torch.nn.Linear(256, 500).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *model.parameters()])
for step, ids in enumerate(batches(tokens)):
    ids = ids.cuda()
    loss = torch.nn.functional.cross_entropy(model(embedding(ids)).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1000 == 0:
        print(step, loss.item())
