"""A while-True loop by iterations; at 250 and 500 the context is grown token by token without a
cache, in a batch."""

import torch

vocab, block = 4000, 128
model = torch.nn.Sequential(torch.nn.Embedding(vocab, 256), torch.nn.Linear(256, vocab)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def sample(count, length):
    context = torch.zeros(count, 1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for _ in range(length):
            probabilities = model(context)[:, -1].softmax(-1)
            context = torch.cat([context, torch.multinomial(probabilities, 1)], dim=1)
    return context


iter_num, max_iters = 0, 600
while True:
    if iter_num > 0 and iter_num % 250 == 0:
        print(sample(128, block).shape)
    tokens = torch.randint(0, vocab, (8, block), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(tokens).view(-1, vocab), tokens.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
