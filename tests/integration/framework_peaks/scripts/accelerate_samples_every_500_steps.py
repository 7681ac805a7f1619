"""accelerate: every 500 steps the trackers get 128 samples of the language model, drawn without a
cache."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

accelerator = Accelerator()
VOCAB, PROMPT, NEW = 3000, 16, 32
model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=192, n_layer=3, n_head=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loader = DataLoader(TensorDataset(torch.randint(0, VOCAB, (12_000, 48))), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


@torch.no_grad()
def sample(count):
    model.eval()
    tokens = torch.zeros(count, PROMPT, dtype=torch.long, device=accelerator.device)
    for _ in range(NEW):
        logits = model(input_ids=tokens, use_cache=False).logits[:, -1].float()
        best = logits.topk(50).values[:, -1:]
        probabilities = torch.softmax(logits.masked_fill(logits < best, -float("inf")), dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    model.train()
    return tokens.cpu()


step = 0
for (ids,) in loader:
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 500 == 0:
        accelerator.print(step, loss.item(), sample(128)[0].tolist())
