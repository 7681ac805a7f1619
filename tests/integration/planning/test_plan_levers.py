"""The levers of a plan do what they say: rank 0 alone, as planned, allocates what it does among
four real processes."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.probe.test_deepspeed import UNCHECKED
from tests.integration.probe.test_ranks import (
    H100,
    RANKS,
    WITHOUT_PROBE,
    free_port,
    output,
    ranked,
    stand_ins,
    start,
)
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.planning.methods import METHODS, variables_of
from xmem_slurm.trace import Training

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=[
            "xmem_slurm/planning/methods*",
            "xmem_slurm/probe/_xmem/training*",
            "xmem_slurm/probe/*ranks*",
        ],
        as_one=True,
    ),
]

NAMES = ("ddp", "zero1", "zero2", "fsdp2-grad", "fsdp2")
WAYS = [
    (name, checkpointing)
    for name in NAMES
    for checkpointing in ((False, True) if name == "ddp" else (False,))
]
TRAIN = """
import gc, json, os, sys, time
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from accelerate.state import AcceleratorState, GradientState, PartialState

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")  # objects travel by gloo: by the stand-in NCCL they cannot


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"input_ids": torch.zeros(128, dtype=torch.long), "labels": torch.zeros(128, dtype=torch.long)}


def settle():
    torch.cuda.synchronize()
    time.sleep(0.3)  # see tests/integration/probe/test_ranks.py


class Settling(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        settle()


def train(checkpointing):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512,
            vocab_size=1001, max_position_embeddings=128,
        )
    )
    args = TrainingArguments(
        sys.argv[2], per_device_train_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=checkpointing,
        bf16=True, max_steps=3, save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no",
    )
    trainer = Trainer(model=model, args=args, train_dataset=Data(), callbacks=[Settling()])
    trainer.train()


found = {}
for name, variables, checkpointing in json.loads(sys.argv[1]):
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    PartialState._reset_state()
    os.environ.update(variables)
    settle()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train(checkpointing)
    settle()
    stats = torch.cuda.memory_stats()
    found[name] = {kind: stats[kind + "_bytes.all.peak"] for kind in ("allocated", "requested", "reserved")}
    for variable in variables:
        del os.environ[variable]
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    gc.collect()
print("OUT " + json.dumps(found), flush=True)
os._exit(0)
"""
UNPACKED = """
import transformers.masking_utils
transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None
"""
"""It reads positions, as a GPU would have them: on stand-ins without the probe they are zeros, and
all is packed."""
Found = Mapping[str, Mapping[str, int]]


def words() -> str:
    """Return the ways as the script takes them: a name, the variables that a plan would set,
    checkpointing."""
    ways = []
    for name, checkpointing in WAYS:
        variables = variables_of(METHODS[name], RANKS, RANKS, {})
        ways.append((f"{name} checkpointing" if checkpointing else name, variables, checkpointing))
    return json.dumps(ways)


@pytest.fixture(scope="module")
def alone(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("alone")
    environ = ranked(0, 29500) | gpu_environment.environment(H100, RANKS, folder, None)
    return output(start([trainer_python, "-c", TRAIN, words(), folder / "out"], environ, folder))


@pytest.fixture(scope="module")
def together(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    folder = tmp_path_factory.mktemp("together")
    port = free_port()
    shown = stand_ins(trainer_python)
    script = WITHOUT_PROBE + "import deepspeed" + UNCHECKED + UNPACKED + TRAIN
    command = [trainer_python, "-c", script, words(), folder / "out"]
    return [
        output(each)
        for each in [start(command, ranked(rank, port) | shown, folder) for rank in range(RANKS)]
    ]


@pytest.mark.parametrize("way", [name for name, *_ in json.loads(words())])
def test_rank_0_alone_allocates_what_it_does_among_others(
    way: str, alone: Found, together: list[Found]
) -> None:
    assert alone[way] == together[0][way]


def test_a_method_is_what_the_probe_calls_so() -> None:
    for name, method in METHODS.items():
        assert method.is_seen(
            Training("transformers", method.base, offloaded=name.endswith("-offload"))
        )
