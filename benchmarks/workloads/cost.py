"""One job of `benchmarks.dryrun_cost`: a model of a usual shape, trained as users train it; says
when it came how far.

    cost.py gpt2 | resnet50 | llama [--layers 32 --hidden 4096 --heads 32 --inner 14336] |
    pretrained FOLDER

Lines "at PHASE SECONDS" on stdout, by time.monotonic(). With --device cpu a few real steps run
under torch.profiler.
"""

import argparse
import contextlib
import os
import time


def at(phase: str) -> None:
    print("at", phase, time.monotonic(), flush=True)


at("start")

import torch  # noqa: E402 - timed
import torchvision  # noqa: E402
import transformers  # noqa: E402

CPU_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("gpt2", "resnet50", "llama", "pretrained"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--inner", type=int, default=14336)
    given = parser.parse_args()
    at("imported")
    kind, sharded = given.device, "WORLD_SIZE" in os.environ
    if sharded:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    model = _model(given).train()
    if sharded:
        _shard(model)
    elif not given.folder:
        model.to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    at("built")
    profiler = (
        torch.profiler.profile(profile_memory=True) if kind == "cpu" else contextlib.nullcontext()
    )
    with profiler:
        for number in range(CPU_STEPS if kind == "cpu" else 1000):
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=not sharded):
                loss = _loss(model, given)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number < 100:  # what is said is read from the end of the output
                at("step")


def _model(given: argparse.Namespace) -> torch.nn.Module:
    if given.model == "resnet50":
        return torchvision.models.resnet50()
    if given.model == "pretrained":
        return transformers.AutoModelForCausalLM.from_pretrained(given.folder).to(given.device)
    if given.model == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config())
    shape = {
        "hidden_size": given.hidden,
        "intermediate_size": given.inner,
        "num_attention_heads": given.heads,
    }
    shape |= {"num_hidden_layers": given.layers, "num_key_value_heads": 8, "vocab_size": 128256}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    model.gradient_checkpointing_enable()
    return model


def _shard(model: torch.nn.Module) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415 - not in every torch

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    model.init_weights()


def _loss(model: torch.nn.Module, given: argparse.Namespace) -> torch.Tensor:
    if given.model == "resnet50":
        images = torch.randn(64, 3, 224, 224, device=given.device)
        return torch.nn.functional.cross_entropy(
            model(images), torch.zeros(64, dtype=torch.long, device=given.device)
        )
    rows, columns = (2, 4096) if given.model == "llama" else (8, 1024)
    tokens = torch.randint(0, model.config.vocab_size, (rows, columns), device=given.device)
    return model(tokens, labels=tokens).loss


if __name__ == "__main__":
    main()
