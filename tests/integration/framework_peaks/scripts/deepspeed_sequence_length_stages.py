"""DeepSpeed on one GPU; the sequences grow from 32 to 256 tokens with the engine's count of steps,
the last at 800."""

import os

import deepspeed
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

os.environ.setdefault("RANK", "0")
os.environ.setdefault("LOCAL_RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29512")

LENGTHS = [(800, 256), (500, 128), (200, 64), (0, 32)]


def length_at(step):
    return next(length for start, length in LENGTHS if step >= start)


model = GPT2LMHeadModel(GPT2Config(vocab_size=5000, n_positions=256, n_embd=192, n_layer=3, n_head=4))
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5_000_000, "allgather_bucket_size": 5_000_000},
        "gradient_clipping": 1.0,
    },
)
loader = DataLoader(TensorDataset(torch.randint(0, 5000, (8000, 256))), batch_size=8, shuffle=True, drop_last=True)
for (ids,) in loader:
    ids = ids[:, : length_at(engine.global_steps)].to(engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    if engine.global_steps % 100 == 0:
        print(engine.global_steps, ids.shape[1], loss.item())
