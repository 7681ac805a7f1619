"""DeepSpeed's ZeRO 1 in bf16 on one GPU, with gradient accumulation and a warmup schedule. Peaks in
the first steps."""

import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

for name, value in {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29511",
}.items():
    os.environ.setdefault(name, value)

config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 50}},
    "steps_per_print": 200,
}


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6000, 256)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(3))
        self.head = nn.Linear(256, 6000)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
loader = DataLoader(TensorDataset(torch.randint(0, 6000, (6400, 129))), batch_size=8, shuffle=True)
for (ids,) in loader:
    ids = ids.to(engine.device)
    logits = engine(ids[:, :-1])
    engine.backward(nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()))
    engine.step()
