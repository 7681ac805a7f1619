"""One run of the ground-truth campaign: an ordinary training or inference script on random data.

    python campaign_run.py --config JSON                       as a job would run it; this is what gets dry-run
    python campaign_run.py --config JSON --measure OUT.json.gz [--cap BYTES]          on a GPU, measured

With --measure it writes one object: the run's measurements ("run"), and the allocator's own history
in the form of the product's traces ("trace", see xmem_slurm/trace.py) with the innermost Python
frame of every allocation ("frames"). --cap is a limit for torch's allocator. Python 3.9, torch,
torchvision and transformers; nothing of the product.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import measuring
from models import build, is_image_model, vocabulary

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
LARGE_PARAMETERS = ("1.5B", "3B", "4B")
"""Models with these in their name are made on the GPU: their random weights take a CPU minutes."""


def make_model(config: dict) -> torch.nn.Module:
    large = config["model"].endswith(LARGE_PARAMETERS)
    with torch.device("cuda") if large else contextlib.nullcontext():
        model = build(config["model"])
    if config["checkpointing"]:
        model.gradient_checkpointing_enable()
    model = model.to("cuda")
    if config["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    model.train(config["training"])
    if config["ddp"]:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    return torch.compile(model) if config["compiled"] else model


def make_optimizer(config: dict, model: torch.nn.Module) -> torch.optim.Optimizer:
    chosen = {name: config[name] for name in ("foreach", "fused") if config[name] is not None}
    return getattr(torch.optim, config["optimizer"])(model.parameters(), lr=1e-4, **chosen)


def loss_of(config: dict, model: torch.nn.Module, tokens: int | None) -> torch.Tensor:
    """Make a batch on the host, copy it, and return the loss; `tokens` is the vocabulary of a
    language model.
    """
    batch, size = config["batch"], config["size"]
    if tokens is not None:
        text = torch.randint(0, tokens, (batch, size)).to("cuda")
        return model(input_ids=text, labels=text).loss
    images = torch.randn(batch, 3, size, size).to("cuda")
    labels = torch.randint(0, 1000, (batch,)).to("cuda")
    if config["channels_last"]:
        images = images.to(memory_format=torch.channels_last)
    return torch.nn.functional.cross_entropy(model(images), labels)


def run(config: dict, after_step: measuring.AfterStep) -> None:
    """Do the steps of one configuration; `after_step` is called when each is over."""
    precision = PRECISIONS.get(config["precision"])
    model = make_model(config)
    tokens = (
        None if is_image_model(config["model"]) else vocabulary(getattr(model, "module", model))
    )
    optimizer = make_optimizer(config, model) if config["training"] else None
    scaler = torch.amp.GradScaler("cuda", enabled=config["precision"] == "fp16")
    for _ in range(config["steps"]):
        cast = torch.autocast("cuda", dtype=precision, enabled=precision is not None)
        with cast, torch.set_grad_enabled(config["training"]):
            loss = loss_of(config, model, tokens)
        if optimizer is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        loss.item()
        after_step()


@contextlib.contextmanager
def process_group(wanted: bool):
    """A group of this one process, where the run wants DistributedDataParallel."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        yield
        torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, type=json.loads)
    parser.add_argument("--measure")
    parser.add_argument("--cap", type=int)
    arguments = parser.parse_args()
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = arguments.config["allocator"]
    torch.backends.cudnn.benchmark = arguments.config["benchmark"]
    if arguments.measure is None:
        with process_group(arguments.config["ddp"]):
            run(arguments.config, lambda: None)
        return
    measurement = measuring.Measurement(arguments.cap)
    with process_group(arguments.config["ddp"]):
        run(arguments.config, measurement.after_step)
        measured = measurement.finish()
    with gzip.open(arguments.measure, "wt", compresslevel=9, encoding="utf-8") as file:
        json.dump(measured, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
