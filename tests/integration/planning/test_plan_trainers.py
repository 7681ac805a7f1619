"""What a plan tells the trainers of others, they do: asked of their own objects, as rank 0 of four
that runs alone."""

import json
import shlex
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.plan_ranks import WORKLOADS
from tests.harness import probe
from tests.integration.probe.test_ranks import RANKS, ranked
from tests.traces import trace_of
from tests.unit.planning.test_plan import site_of
from xmem_slurm.planning import deepspeed_json
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.changes import changed, files_for
from xmem_slurm.planning.methods import METHODS
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Training

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=["xmem_slurm/planning/*", "xmem_slurm/probe/_xmem/training*"], as_one=True
    ),
]

OF_DEEPSPEED = """
import argparse, torch, deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
arguments = deepspeed.add_config_arguments(parser).parse_args()
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
data = torch.utils.data.TensorDataset(torch.zeros(1000, 256))
engine, _, batches, _ = deepspeed.initialize(
    args=arguments, model=model, model_parameters=model.parameters(), training_data=data
)
for number, (x,) in zip(range(12), batches):
    engine.backward(engine(x.cuda().bfloat16()).float().square().mean())
    engine.step()
"""
OF_TRANSFORMERS = """
import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"input_ids": torch.zeros(64, dtype=torch.long), "labels": torch.zeros(64, dtype=torch.long)}


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = LlamaConfig(
    hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=501
)
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Data()).train()
"""
OF_LIGHTNING = """
import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])

    def training_step(self, batch, _):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(1000, 256)), batch_size=8)


LightningCLI(Model, save_config_callback=None)
"""
OF_TORCHTITAN = """
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "tokenizer"
[training]
local_batch_size = 4
seq_len = 256
steps = 6
dataset = "c4_test"
[activation_checkpoint]
mode = "none"
"""
ZERO_1 = {
    "train_micro_batch_size_per_gpu": 8,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
ZERO_2 = {
    **dict.fromkeys(
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"),
        "auto",
    ),
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}


@dataclass(frozen=True)
class Way:
    """A job as it is written, and what it is to become: a method, batches, what else."""

    files: dict[str, str]
    command: str
    written: Training
    method: str
    batches: tuple[int, int]
    checkpointing: bool = False
    bf16: bool = False
    tensor: int = 1


LIGHTNING = (
    "fit --trainer.devices 4 --trainer.strategy=ddp --trainer.max_steps 6 --trainer.accelerator gpu"
)
LIGHTNING += (
    " --trainer.logger false --trainer.enable_checkpointing false "
    "--trainer.enable_progress_bar false"
)
LITTLE = (
    "--output_dir out --max_steps 4 --report_to none --save_strategy no "
    "--per_device_train_batch_size 4"
)
BY_OPTIONS = Training(
    "lightning", "ddp", 8, 1, precision="no", has_options=True, has_deepspeed=True
)
WAYS = {
    "DeepSpeed": Way(
        {"train.py": OF_DEEPSPEED, "ds.json": json.dumps(ZERO_1)},
        "train.py --deepspeed --deepspeed_config ds.json",
        Training("deepspeed", "zero1", 8, 1, own_batches=True),
        "zero3",
        (2, 4),
    ),
    "transformers with DeepSpeed's file": Way(
        {"train.py": OF_TRANSFORMERS, "ds.json": json.dumps(ZERO_2)},
        f"train.py --deepspeed ds.json --fp16 {LITTLE}",
        Training("transformers", "zero2", 4, 1, precision="fp16", has_deepspeed=True),
        "zero1",
        (2, 2),
        checkpointing=True,
        bf16=True,
    ),
    "Lightning, sharded": Way(
        {"train.py": OF_LIGHTNING}, f"train.py {LIGHTNING}", BY_OPTIONS, "fsdp1", (8, 2), bf16=True
    ),
    "Lightning with DeepSpeed": Way(
        {"train.py": OF_LIGHTNING}, f"train.py {LIGHTNING}", BY_OPTIONS, "zero2", (8, 1), bf16=True
    ),
    "torchtitan": Way(
        {"train.toml": OF_TORCHTITAN},
        "-m torchtitan.train --job.config_file train.toml",
        Training("torchtitan", "fsdp2", 4, 1, shards=4, can_checkpoint=True),
        "fsdp2-grad",
        (2, 4),
        checkpointing=True,
        tensor=2,
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_trainer_does_what_it_is_told(name: str, trainer_python: Path, tmp_path: Path) -> None:
    way = WAYS[name]
    for file, text in way.files.items():
        (tmp_path / file).write_text(text)
    if name == "torchtitan":
        subprocess.run([trainer_python, WORKLOADS / "torchtitan_text.py"], cwd=tmp_path, check=True)
    script = f"#!/bin/bash\ntorchrun --standalone --nproc-per-node=4 {way.command}\n"
    argv = ["python", "-u", *shlex.split(way.command)]
    trace = replace(trace_of("+a:1"), world_size=RANKS, argv=argv, training=way.written)
    job = Submission((f"--chdir={tmp_path}", "--gpus-per-node=4", "job.sh"), {}, script.encode())
    base = Base(job, trace, None, deepspeed_json.find(trace, tmp_path, tmp_path / "copies"))
    method, parts = METHODS[way.method], RANKS // way.tensor
    candidate = Candidate(
        *("small", RANKS, 1, method, parts, *way.batches, way.checkpointing),
        tensor=way.tensor,
        bf16=way.bf16,
    )
    for path, content in files_for(base, candidate).items():
        path.parent.mkdir()
        path.write_bytes(content)
    ready = changed(base, candidate, site_of(small=8)).script
    assert ready is not None
    words = shlex.split(ready.decode().splitlines()[-1])
    command = words[words.index(argv[2]) :]
    environ = ranked(0, 29500) | {
        "LOCAL_WORLD_SIZE": str(RANKS),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }
    run = probe.runs(trainer_python, probe.stand_ins(trainer_python), tmp_path)
    ran = run(way.files.get("train.py", ""), command, gpus=RANKS, **environ)
    assert ran.used, ran.stderr[-3000:]
    seen = max(ran.used, key=lambda each: len(each.allocations))
    assert seen.steps >= 2, ran.stderr[-3000:]
    assert candidate.is_seen(seen, base.training) == "", seen.training
    assert seen.training.micro_batch == candidate.micro_batch
    last = run(
        way.files.get("train.py", ""),
        command,
        gpus=RANKS,
        **environ | ranked(RANKS - 1, 29500),
        XMEM_STARTS="1",
        XMEM_RUN_RANKS=f"{RANKS - 1}/{RANKS}",
    )
    assert last.returncode == 0, last.stderr[-3000:]
    at_first_collective = max(last.traces, key=lambda each: each.rank)
    assert (at_first_collective.state, at_first_collective.steps) == ("steady", 0)
    if name == "torchtitan":  # whose optimizers are in one, which steps with them
        assert seen.steps == 6
        assert seen.counts is not None
