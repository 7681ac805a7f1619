"""What a step does, counted by the stand-ins: equal to arithmetic, for transformers as people write
them."""

from pathlib import Path

import pytest

from benchmarks import planner, training_ways
from tests.harness import probe
from tests.harness.probe import Run
from xmem_slurm.planning import speed
from xmem_slurm.work import Work

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=["xmem_slurm/device/*", "xmem_slurm/planning/speed.py", "xmem_slurm/work.py"]
    ),
]

SECONDS = 300
"""Enough for a script's own end; with a budget calls are skipped, without one all are made."""
LAYERS, HIDDEN, VOCABULARY, TOKENS, SAMPLES = 2, 256, 4096, 256, 4

COMMON = f"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYERS, HIDDEN, VOCABULARY, TOKENS, SAMPLES = {LAYERS}, {HIDDEN}, {VOCABULARY}, {TOKENS}, {SAMPLES}

def attend(q, k, v, heads):
    q, k, v = (x.unflatten(-1, (-1, 64)).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    with sdpa_kernel(SDPBackend.BACKEND):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

def train(model, micro_batches=1):
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.zeros(5 * micro_batches * SAMPLES, TOKENS, dtype=torch.long)
    data = iter(torch.utils.data.DataLoader(data, batch_size=SAMPLES))
    for step in range(5):
        for last in [False] * (micro_batches - 1) + [True]:
            model.require_backward_grad_sync = last
            tokens = next(data).cuda()
            F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if step == 3:
                model(tokens)
"""
GPT_2 = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        x = x + self.out(attend(*self.qkv(self.before(x)).chunk(3, -1), HIDDEN // 64))
        return x + self.down(F.gelu(self.up(self.between(x))))

model = nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), *[Block() for _ in range(LAYERS)],
                      nn.Linear(HIDDEN, VOCABULARY, bias=False)).cuda().to(torch.DTYPE)
"""
LLAMA = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        linear = lambda n, k: nn.Linear(k, n, bias=False)
        self.q, self.k, self.v = linear(HIDDEN, HIDDEN), linear(HIDDEN // 2, HIDDEN), linear(HIDDEN // 2, HIDDEN)
        self.out, self.gate, self.up = linear(HIDDEN, HIDDEN), linear(3 * HIDDEN, HIDDEN), linear(3 * HIDDEN, HIDDEN)
        self.down = linear(HIDDEN, 3 * HIDDEN)

    def forward(self, x):
        y = self.before(x)
        x = x + self.out(attend(self.q(y), self.k(y), self.v(y), HIDDEN // 64))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

model = nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), *[Block() for _ in range(LAYERS)],
                      nn.Linear(HIDDEN, VOCABULARY, bias=False)).cuda().to(torch.DTYPE)
"""
DDP = """
import os
torch.distributed.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
train(model, micro_batches=2)
"""
WEIGHTS = {
    GPT_2: LAYERS * 12 * HIDDEN**2 + VOCABULARY * HIDDEN,
    LLAMA: LAYERS * 12 * HIDDEN**2 + VOCABULARY * HIDDEN,
}
"""Of products: attention of 3 HIDDEN^2 in LLAMA, and 9 of its three larger matrices."""
ATTENTION = 3.5 * 2 * SAMPLES * TOKENS**2 * HIDDEN * LAYERS
"""Causal: half of two products forward, of five backward."""


@pytest.fixture(scope="module")
def stand_ins(job_python: Path) -> Path:
    return probe.stand_ins(job_python)


@pytest.fixture
def run(warm_python: Path, stand_ins: Path, tmp_path: Path) -> Run:
    return probe.runs(warm_python, stand_ins, tmp_path)


def work(ran: probe.Ran) -> Work:
    assert ran.returncode == 0, ran.stderr
    found = speed.work_of(ran.trace)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "backend", "dtype", "precision"),
    [
        (GPT_2, "CUDNN_ATTENTION", "bfloat16", "bf16"),
        (GPT_2, "EFFICIENT_ATTENTION", "float32", "fp32"),
        (LLAMA, "FLASH_ATTENTION", "float16", "fp16"),
        (LLAMA, "MATH", "bfloat16", "bf16"),
    ],
    ids=["GPT-2, cuDNN", "GPT-2, memory-efficient", "Llama, flash", "Llama, products"],
)
def test_flops_are_those_of_arithmetic(
    run: Run, model: str, backend: str, dtype: str, precision: str
) -> None:
    code = (COMMON + model + "train(model)").replace("BACKEND", backend, 1).replace("DTYPE", dtype)
    found = work(run(code))
    products = 6 * WEIGHTS[model] * SAMPLES * TOKENS
    if backend == "MATH":  # all of each matrix of scores, in fp32, and no kernel for both products
        products += 12 / 7 * ATTENTION
    else:
        assert dict(found.flops) == pytest.approx({precision: ATTENTION}, rel=0.01)
        assert {each.precision for each in found.products} == {precision}
    assert sum(each.flops for each in found.products) == pytest.approx(products, rel=0.01)
    assert not found.collectives


def test_gradients_are_reduced_once_and_beside_the_backward_pass(run: Run) -> None:
    code = (
        (COMMON + GPT_2 + DDP).replace("BACKEND", "FLASH_ATTENTION", 1).replace("DTYPE", "bfloat16")
    )
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    found = work(run(code, MASTER_ADDR="localhost", MASTER_PORT="29533", **ranks))
    biases = LAYERS * (3 + 1 + 4 + 1 + 4) * HIDDEN
    gradients = 2 * (WEIGHTS[GPT_2] + VOCABULARY * HIDDEN + biases)
    assert {(each.kind, each.ranks, each.nodes) for each in found.collectives} == {
        ("all_reduce", 8, 1)
    }
    assert sum(each.bytes * each.count for each in found.collectives) == pytest.approx(
        gradients, rel=0.01
    )
    beside = sum(each.bytes * each.count for each in found.collectives if each.beside)
    assert 0.5 * gradients < beside < gradients, "the last bucket is waited for"
    assert {each.beside for each in found.collectives} == {0.0, speed.BACKWARD / 2}
    assert sum(each.flops for each in found.products) == pytest.approx(
        2 * 6 * WEIGHTS[GPT_2] * SAMPLES * TOKENS, rel=0.01
    )


def test_a_step_of_many_micro_batches_counts_as_one_of_which_all_are_made(run: Run) -> None:
    """All but the first few are skipped: they have the GPU do what those do, and one reduces."""
    code = (COMMON + GPT_2 + DDP).replace("BACKEND", "FLASH_ATTENTION", 1)
    code = code.replace("DTYPE", "bfloat16").replace("micro_batches=2", "micro_batches=48")
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    whole = work(run(code, MASTER_ADDR="localhost", MASTER_PORT="29534", **ranks))
    ran = run(code, seconds=SECONDS, MASTER_ADDR="localhost", MASTER_PORT="29535", **ranks)
    trace = ran.traces[-1]
    found = speed.work_of(trace)
    assert found is not None
    assert trace.seen is not None
    assert trace.seen.skipped > 5 * 40, "each of five steps makes only a few"
    assert found.total_flops == whole.total_flops
    assert found.collectives == whole.collectives
    assert found.launches == pytest.approx(whole.launches, rel=0.01)
    assert found.bytes == pytest.approx(whole.bytes, rel=0.01)


OF_A_ROW = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(0)
config = GPT2Config(attn_implementation="eager", use_cache=False)
model = torch.nn.parallel.DistributedDataParallel(GPT2LMHeadModel(config).half().cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    tokens = torch.zeros(MICRO_BATCH, config.n_positions, dtype=torch.long, device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_is_counted_of_a_measured_way_is_what_the_benchmark_of_the_speed_model_takes(
    run: Run,
) -> None:
    """GPT-2 with DDP on 16 V100 in fp16, beside which DeepSpeed's autotuning was measured. Its GELU
    and its eager attention go through memory more often than the benchmark takes of a layer."""
    ways = training_ways.read(planner.WAYS)
    (way,) = [way for way in ways if (way.model, way.method) == ("GPT-2", "ddp")]
    expected = training_ways.work_of_way(way)
    size = str(way.gpus)
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    code = OF_A_ROW.replace("MICRO_BATCH", str(way.micro_batch))
    found = work(run(code, MASTER_ADDR="localhost", MASTER_PORT="29536", **ranks))
    assert found.total_flops == pytest.approx(expected.total_flops, rel=0.01)
    assert found.launches == pytest.approx(expected.launches, rel=0.1)
    assert expected.bytes < found.bytes < 1.6 * expected.bytes
    assert {each.kind for each in found.collectives} == {"all_reduce"}
    sent = [sum(each.bytes * each.count for each in of.collectives) for of in (found, expected)]
    assert sent[0] == pytest.approx(sent[1], rel=0.01)


SHARDED = """
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(0)
from torch.distributed import fsdp
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
model = fsdp.FullyShardedDataParallel(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    backward_prefetch=fsdp.BackwardPrefetch.BACKWARD_PREFETCH,
)
train(model)
"""


@pytest.mark.parametrize(("prefetch", "behind"), [("POST", 6), ("PRE", 1)])
def test_what_is_gathered_once_a_layer_is_done_is_waited_for(
    run: Run, prefetch: str, behind: int
) -> None:
    """So it is in the backward pass, but for the last layer's, unless it is gathered before."""
    code = COMMON + GPT_2 + SHARDED.replace("BACKWARD_PREFETCH", f"BACKWARD_{prefetch}")
    code = code.replace(f"= {LAYERS}, {HIDDEN}", f"= 6, {HIDDEN}", 1)
    code = code.replace("BACKEND", "FLASH_ATTENTION", 1).replace("DTYPE", "bfloat16")
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    found = work(run(code, MASTER_ADDR="localhost", MASTER_PORT="29536", **ranks))
    of_a_layer = max(found.collectives, key=lambda each: each.count).bytes
    counts = {
        (each.kind, each.beside > 0): each.count
        for each in found.collectives
        if each.bytes == of_a_layer
    }
    assert counts == {
        ("all_gather", True): 12 - behind,
        ("all_gather", False): behind,
        ("reduce_scatter", True): 6,
    }


def test_convolutions_are_counted_by_their_output(run: Run) -> None:
    found = work(
        run(
            "import torch\nfrom torch import nn\n"
            "model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, "
            "groups=2)).cuda()\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for step in range(5):\n"
            "    model(torch.zeros(8, 3, 34, 34, device='cuda')).sum().backward()\n"
            "    optimizer.step()\n"
        )
    )
    first, second = 2 * 8 * 16 * 34 * 34 * 3 * 9, 2 * 8 * 32 * 32 * 32 * 8 * 9
    assert dict(found.flops) == {"tf32": 2 * first + 3 * second}, (
        "nobody asks for the gradient of the images"
    )
