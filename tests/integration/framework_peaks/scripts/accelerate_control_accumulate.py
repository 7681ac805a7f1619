"""accelerate with gradient accumulation, clipping and a state saved after each epoch. Peaks in the
first steps."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
width = 384
model = nn.Sequential(
    nn.Embedding(5000, width),
    nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, dropout=0.0),
    nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, dropout=0.0),
    nn.Linear(width, 5000),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(TensorDataset(torch.randint(0, 5000, (6400, 65))), batch_size=8, shuffle=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=2 * len(loader))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for epoch in range(2):
    for i, (tokens,) in enumerate(loader):
        with accelerator.accumulate(model):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, 5000), tokens[:, 1:].reshape(-1))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if i % 200 == 0:
            accelerator.print(epoch, i, loss.item())
    accelerator.save_state(f"state_{epoch}")
