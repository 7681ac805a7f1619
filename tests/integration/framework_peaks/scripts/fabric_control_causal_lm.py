"""A language model by Lightning Fabric in bf16, its validation in batches of the same size. Peaks
at once."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
fabric.launch()
fabric.seed_everything(3)


class LM(nn.Module):
    def __init__(self, vocab=8000, width=256, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def loss_of(model, ids):
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def loader(size):
    return DataLoader(TensorDataset(torch.randint(0, 8000, (size, 97))), batch_size=16, shuffle=True)


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model, optimizer = fabric.setup(model, optimizer)
train, valid = fabric.setup_dataloaders(loader(4800), loader(320))

for epoch in range(2):
    model.train()
    for step, (ids,) in enumerate(train):
        loss = loss_of(model, ids)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            fabric.print(epoch, step, loss.item())
    model.eval()
    with torch.no_grad():
        fabric.print("valid", sum(loss_of(model, ids).item() for (ids,) in valid) / len(valid))
