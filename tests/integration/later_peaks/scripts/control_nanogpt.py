"""nanoGPT's loop: while True, evaluated every 100 iterations with the same batch. Training is the
peak."""

import torch

batch_size, block_size, vocab = 12, 128, 6000
max_iters, eval_interval, eval_iters = 400, 100, 10
data = torch.randint(0, vocab, (200_000,))
model = torch.nn.Sequential(
    torch.nn.Embedding(vocab, 384),
    torch.nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, dropout=0.0),
    torch.nn.Linear(384, vocab, bias=False),
).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)


def loss_of(x, y):
    return torch.nn.functional.cross_entropy(model(x).view(-1, vocab), y.view(-1))


iter_num = 0
while True:
    if iter_num % eval_interval == 0:
        model.eval()
        with torch.no_grad():
            print(iter_num, sum(loss_of(*get_batch()).item() for _ in range(eval_iters)) / eval_iters)
        model.train()
    loss_of(*get_batch()).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
