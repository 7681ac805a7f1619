"""Llama 8B from its configuration, sharded over all GPUs by FSDP2, bf16, checkpointed activations,
synthetic tokens.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA_8B = LlamaConfig(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2, help="sequences on each GPU")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")

    with torch.device("meta"):
        model = LlamaForCausalLM(LLAMA_8B)
    model.gradient_checkpointing_enable()
    model.train()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    model.init_weights()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(arguments.steps):
        tokens = torch.randint(
            0, LLAMA_8B.vocab_size, (arguments.batch_size, arguments.sequence), device="cuda"
        )
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and dist.get_rank() == 0:
            peak = torch.cuda.max_memory_reserved() / 2**30
            print(f"step {step}: loss {loss.item():.3f}, {peak:.2f} GiB reserved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
