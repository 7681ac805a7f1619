"""DeepSpeed's ZeRO 1, 2 and 3: rank 0 of four alone allocates what rank 0 of four processes
does."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness import probe
from tests.integration.probe.test_ranks import (
    H100,
    OF_FOUR,
    RANKS,
    WITHOUT_PROBE,
    free_port,
    output,
    ranked,
    stand_ins,
    start,
)
from xmem_slurm.allocator.replay import replay
from xmem_slurm.dryrun import dispatch, gpu_environment, ranks
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import SharedBudget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.sizing.estimate import estimate

pytestmark = [pytest.mark.torch, OF_FOUR]

TRAIN = """
import gc, json, os, sys, time
import torch, deepspeed

sys.argv = [word for word in sys.argv if not word.startswith("--local_rank")]
deepspeed.init_distributed()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def train(stage, offload):
    torch.manual_seed(0)
    zero = {"stage": stage, "reduce_bucket_size": 10**7, "stage3_param_persistence_threshold": 1000}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = torch.nn.Sequential(*[Block() for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def once():
        engine.backward(engine(torch.zeros(4, 128, 512, device=engine.device, dtype=torch.bfloat16)).float().sum())
        engine.step()

    return once, engine
"""
UNCHECKED = """
from deepspeed.runtime.zero import partitioned_param_coordinator
partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda ints: None
"""
"""Ranks compare with each other the order of their modules; between real processes on stand-ins
nothing arrives."""
MEASURED = """
def settle():
    torch.cuda.synchronize()
    time.sleep(0.3)


found = {}
for stage, offload in (1, False), (2, False), (3, False), (2, True), (3, True):
    settle()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    once, engine = train(stage, offload)
    for _ in range(3):
        once()
        settle()
    stats = torch.cuda.memory_stats()
    found["%d%s" % (stage, " offloaded" if offload else "")] = {
        kind: stats[kind + "_bytes.all.peak"] for kind in ("allocated", "requested", "reserved")
    }
    engine.destroy()
    del once, engine
    gc.collect()
print("OUT " + json.dumps(found), flush=True)
os._exit(0)
"""
FOREVER = """
once, _ = train(int(sys.argv[1]), False)
while True:
    once()
"""


Found = Mapping[str, Mapping[str, int]]


@pytest.fixture(scope="module")
def alone(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What rank 0 says when it runs with the probe and without any other rank."""
    folder = tmp_path_factory.mktemp("alone")
    environ = ranked(0, 29500) | gpu_environment.environment(H100, RANKS, folder, None)
    return output(start([trainer_python, "-c", TRAIN + MEASURED], environ, folder))


@pytest.fixture(scope="module")
def together(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of four processes says that meet through torch's own TCPStore, without the
    probe."""
    folder = tmp_path_factory.mktemp("together")
    port = free_port()
    shown = stand_ins(trainer_python)
    command = [trainer_python, "-c", WITHOUT_PROBE + TRAIN + UNCHECKED + MEASURED]
    return [
        output(each)
        for each in [start(command, ranked(rank, port) | shown, folder) for rank in range(RANKS)]
    ]


@pytest.mark.parametrize("stage", ["1", "2", "3", "2 offloaded", "3 offloaded"])
def test_rank_0_alone_allocates_what_it_does_among_others(
    stage: str, alone: Found, together: list[Found]
) -> None:
    assert alone[stage] == together[0][stage]
    assert max(rank[stage]["allocated"] for rank in together) == alone[stage]["allocated"]


@pytest.mark.parametrize(
    "launcher", [f"deepspeed --num_gpus={RANKS}", "accelerate launch --multi_gpu"]
)
def test_a_job_is_estimated(launcher: str, trainer_python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + FOREVER)
    environ = {"HOME": str(tmp_path), "PATH": f"{trainer_python.parent}:/usr/bin:/bin"}
    job = Job(f"#!/bin/bash\n{launcher} train.py 3\n".encode(), (), tmp_path, environ, (RANKS,))
    # three quarters of it go by: the script has no end
    order = DryRunOrder.of(job, H100, Budget(seconds=120))
    found = estimate(
        dispatch.one(ranks.run(order, SharedBudget(order.budget)), DryRuns()), "h100", H100
    )
    assert [(each.trace.rank, each.trace.world_size) for each in found.ranks] == [(0, RANKS)]
    assert found.largest.trace.state == "steady"


BUCKET = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): return {"input_ids": torch.arange(16), "labels": torch.arange(16)}

config = LlamaConfig(
    vocab_size=2000, hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4
)
zero = {"stage": 2, "reduce_bucket_size": 10**8}
deepspeed = {"zero_optimization": zero, "bf16": {"enabled": True}}
deepspeed.update(train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto")
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=12, bf16=True,
    save_strategy="no", report_to="none", deepspeed=deepspeed,
)
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Rows()).train()
"""


def test_a_bucket_that_has_room_for_all_gradients_is_there_once(
    trainer_python: Path, tmp_path: Path
) -> None:
    """Its hooks are called for skipped calls, too."""
    run = probe.runs(trainer_python, probe.stand_ins(trainer_python), tmp_path)
    four = ranked(0, 29500)
    whole, ran = run(BUCKET, **four).traces[-1], run(BUCKET, seconds=300, **four).traces[-1]
    assert ran.seen is not None
    assert ran.seen.skipped > 20
    true = whole.recorded["allocated_bytes"]
    assert replay(ran).peak_allocated_bytes == pytest.approx(true, rel=0.01)
