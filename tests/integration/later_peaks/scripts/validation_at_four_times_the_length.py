"""modded-nanogpt's order: ten warm-up steps, the state put back, then validation at four times the
length."""

import copy

import torch

VOCAB, STEPS, VAL_EVERY = 16000, 300, 125
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 256), torch.nn.Linear(256, VOCAB, bias=False)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.95, nesterov=True)


def loss_at(length):
    tokens = torch.randint(0, VOCAB, (length,), dtype=torch.int32).cuda()
    return torch.nn.functional.cross_entropy(model(tokens), tokens.long())


initial = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
for _ in range(10):
    loss_at(2048).backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
model.load_state_dict(initial["model"])
optimizer.load_state_dict(initial["optimizer"])
del initial

for step in range(STEPS + 1):
    last_step = step == STEPS
    if last_step or step % VAL_EVERY == 0:
        model.eval()
        with torch.no_grad():
            val_loss = sum(loss_at(4 * 2048) for _ in range(5)) / 5
        print(f"step:{step}/{STEPS} val_loss:{val_loss:.4f}")
        model.train()
    if last_step:
        break
    loss_at(2048).backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
