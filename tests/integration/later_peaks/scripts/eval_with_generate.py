"""After each epoch 256 prompts are continued with a cache of keys and values that grows by
concatenation."""

import torch
import torch.nn.functional as F

WIDTH, HEADS, VOCAB, DEPTH = 512, 8, 1000, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return x + self.out(y.transpose(1, 2).flatten(2)), (k, v)


embed, head = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(WIDTH, VOCAB)
blocks = torch.nn.ModuleList(Block() for _ in range(DEPTH))
model = torch.nn.ModuleList([embed, blocks, head]).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def forward(tokens, cache=None):
    x, new = embed(tokens), []
    for i, block in enumerate(blocks):
        x, kept = block(x, cache[i] if cache else None)
        new.append(kept)
    return head(x), new


@torch.no_grad()
def generate(prompt, count):
    logits, cache = forward(prompt)
    for _ in range(count):
        logits, cache = forward(logits[:, -1:].argmax(-1), cache)


for epoch in range(2):
    for _ in range(80):
        tokens = torch.randint(0, VOCAB, (8, 65)).cuda()
        F.cross_entropy(forward(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    generate(torch.zeros(256, 16, dtype=torch.long, device="cuda"), 150)
