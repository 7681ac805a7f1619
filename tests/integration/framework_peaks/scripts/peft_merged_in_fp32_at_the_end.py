"""A LoRA of a bf16 model by PEFT; at the end a copy in fp32 is merged and compared in batches four
times as large."""

import copy

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(vocab_size=8000, n_positions=128, n_embd=512, n_layer=4, n_head=8)
model = GPT2LMHeadModel(config).to(torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)).to("cuda")
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
loader = DataLoader(TensorDataset(torch.randint(0, 8000, (3200, 96))), batch_size=4, shuffle=True)
test = DataLoader(TensorDataset(torch.randint(0, 8000, (128, 96))), batch_size=16)

model.train()
for step, (ids,) in enumerate(loader):
    ids = ids.to("cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(step, loss.item())

merged = copy.deepcopy(model).float().merge_and_unload()
merged.eval()
model.eval()
difference = 0.0
with torch.no_grad():
    for (ids,) in test:
        ids = ids.to("cuda")
        difference = max(difference, (merged(ids).logits - model(ids).logits.float()).abs().max().item())
print("largest difference", difference)
merged.save_pretrained("merged")
