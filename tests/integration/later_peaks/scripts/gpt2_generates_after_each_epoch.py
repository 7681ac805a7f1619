"""transformers' GPT-2, small; after each epoch 64 samples by beam search. The peak comes in
generate()."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_layer=2, n_embd=256, n_head=4, n_positions=512, vocab_size=4000, bos_token_id=0, eos_token_id=1)
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for epoch in range(2):
    model.train()
    for _ in range(60):
        ids = torch.randint(2, 4000, (4, 64)).cuda()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    prompt = torch.full((64, 8), 7, device="cuda")
    mask = torch.ones_like(prompt)
    out = model.generate(prompt, attention_mask=mask, num_beams=4, max_new_tokens=40, min_new_tokens=40, pad_token_id=1)
    print(epoch, out.shape)
