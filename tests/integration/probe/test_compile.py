"""torch.compile and Triton kernels in a dry run: inductor's plan is real, its kernels are neither
compiled nor run."""

import os
import subprocess
from pathlib import Path

import pytest

from xmem_slurm.allocator.replay import replay
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=["xmem_slurm/probe/*triton*", "xmem_slurm/probe/*pools*", "xmem_slurm/device/src/*"],
        as_one=True,
    ),
]

MIB = 1 << 20
H200 = load_catalogue()["h200"]
SECONDS = 300

TRAIN = """
import torch
HOW
layer = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 4096), torch.nn.GELU("tanh")).cuda()
optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
train = compiled(lambda x: layer(x * (x != x.roll(1, 0))).float().softmax(-1).square().mean())
for _ in range(6):
    train(torch.randn(4096, 1024, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
EAGER = "compiled = lambda function: function"
COMPILED = "compiled = torch.compile"
REAL_KERNELS = """
import os, triton.backends
mapped = [line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("libcuda.so.1")]
os.environ["TRITON_LIBCUDA_PATH"] = os.path.dirname(mapped[0])
ours = triton.backends.backends["nvidia"]
theirs = type(ours)(compiler=ours.compiler.__base__, driver=ours.driver.__base__)
triton.backends.backends["nvidia"] = theirs
compiled = torch.compile
"""
GRAPHED = "compiled = lambda function: torch.compile(function, mode='reduce-overhead')"
MAX_AUTOTUNE = (
    "compiled = lambda function: torch.compile(function, mode='max-autotune-no-cudagraphs')"
)

GRAPHED_CALLABLE = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
graphed = torch.cuda.make_graphed_callables(layer, (torch.randn(512, 1024, device="cuda"),))
optimizer = torch.optim.AdamW(layer.parameters(), capturable=True)
for _ in range(6):
    graphed(torch.randn(512, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SHARDED = """
import torch
import torch.distributed as dist
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard
dist.init_process_group("nccl")


class Block(torch.nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        for _ in range(4):
            x = x.tanh()
        return x


blocks = [Block(1024, 1024) for _ in range(3)]
layers = torch.nn.Sequential(*blocks).cuda()
for block in layers:
    HOW
    fully_shard(block)
fully_shard(layers)
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
for _ in range(4):
    layers(torch.randn(8192, 1024, device="cuda")).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

KERNEL = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024})], key=["count"])
@triton.jit
def double(source, target, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, 2 * tl.load(source + places, mask=places < count), mask=places < count)

weights = torch.zeros(1 << 20, device="cuda")
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(3):
    weights.grad = torch.empty_like(weights)
    double[lambda chosen: (triton.cdiv(weights.numel(), chosen["BLOCK"]),)](weights, weights.grad, weights.numel())
    optimizer.step()
"""

TUNED = """
import torch, torch._inductor.config, triton
torch._inductor.config.force_disable_caches = True
compiled, made = triton.compile, []
triton.compile = lambda *args, **kwargs: made.append(args) or compiled(*args, **kwargs)
tried = []
for tuned in (False, True):
    torch._dynamo.reset()
    torch._inductor.config.coordinate_descent_tuning = tuned
    layer = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters())
    train = torch.compile(lambda x: layer(x).float().softmax(-1).square().mean())
    for _ in range(2):
        train(torch.randn(4096, 1024, device="cuda")).backward()
        optimizer.step()
    tried.append(len(made) - sum(tried))
assert tried[1] == 2 * tried[0] > 0, tried  # each is compiled once more to be measured, and no neighbour
"""

GRAPH = """
import torch
from torch._dynamo.backends.common import aot_autograd
called = []
def note(graph, _inputs):
    called.extend(str(node.target) for node in graph.graph.nodes)
    return graph.forward
gelu = torch.compile(lambda x: 0.5 * x * (1 + torch.tanh(x + 0.044715 * x**3)), backend=aot_autograd(fw_compiler=note))
gelu(torch.randn(8, device="cuda", requires_grad=True)).sum().backward()
assert "aten.tanh.default" in called and not {"aten.scalar_tensor.default", "aten.full.default"} & {*called}, called
"""

PADDED = """
import torch
words = torch.randn(1024, 5025, device="cuda", dtype=torch.DTYPE)
multiply = torch.compile(lambda x: (x @ words).float().sum())
x = torch.randn(4096, 1024, device="cuda", dtype=torch.DTYPE)
multiply(x)
torch.cuda.reset_peak_memory_stats()
held = torch.cuda.memory_allocated()
multiply(x)
taken = torch.cuda.max_memory_allocated() - held
assert taken >= x.itemsize * (4096 + 1024) * 5028, taken
"""


def dry_run(folder: Path, python: Path, code: str, **environ: str) -> Trace:
    (folder / "train.py").write_text(code)
    environ |= {"PATH": os.environ["PATH"], "HOME": str(folder)}
    job = Job(f"#!/bin/sh\nexec {python} train.py\n".encode(), [], folder, environ)
    (trace,) = [
        t
        for t in runner.run(DryRunOrder.of(job, H200, Budget(seconds=SECONDS))).traces
        if t.allocations
    ]
    assert trace.error is None
    return trace


@pytest.fixture(scope="session")
def triton_python(job_python: Path) -> Path:
    """The job's Python, if it has Triton."""
    if subprocess.run(
        [job_python, "-c", "import triton"], capture_output=True, check=False
    ).returncode:
        pytest.skip(
            "the Python of XMEM_TEST_PYTHON has no Triton (.ci/job-python installs it for torch "
            "2.11)"
        )
    return job_python


@pytest.fixture(scope="session")
def compiled(triton_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return dry_run(
        tmp_path_factory.mktemp("compiled"), triton_python, TRAIN.replace("HOW", COMPILED)
    )


def test_a_compiled_step_needs_less_than_an_eager_one(
    compiled: Trace, triton_python: Path, tmp_path: Path
) -> None:
    eager = dry_run(tmp_path, triton_python, TRAIN.replace("HOW", EAGER))
    one = 4096 * 4096 * 4  # bytes of one activation of the wide layer
    assert compiled.recorded["allocated_bytes"] < eager.recorded["allocated_bytes"] - one
    assert replay(compiled).peak_reserved_bytes == compiled.recorded["reserved_bytes"]
    assert "no-triton" not in {doubt.code for doubt in compiled.doubts}


def test_what_is_allocated_is_what_real_kernels_and_their_launchers_ask_for(
    compiled: Trace, triton_python: Path, tmp_path: Path
) -> None:
    """Here Triton compiles each kernel with ptxas and launches it through its own driver, on the
    stand-in libcuda."""
    ask = [str(triton_python), "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    header = Path(
        subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip(), "Python.h"
    )
    if not header.is_file():
        pytest.skip(
            f"Triton's own driver is C that is compiled as the job runs, and there is no {header}"
        )
    real = dry_run(tmp_path, triton_python, TRAIN.replace("HOW", REAL_KERNELS))
    # how many are run depends on the clock
    steps = min(compiled.marks[-1].allocations, real.marks[-1].allocations)
    assert steps > 10
    assert compiled.allocations[:steps] == real.allocations[:steps]
    assert compiled.recorded == real.recorded


def test_the_pools_of_its_cuda_graphs_are_exact(triton_python: Path, tmp_path: Path) -> None:
    trace = dry_run(tmp_path, triton_python, TRAIN.replace("HOW", GRAPHED))
    assert "private-pool" in {doubt.code for doubt in trace.doubts}
    assert replay(trace).peak_reserved_bytes == trace.recorded["reserved_bytes"]


def test_a_number_of_the_script_is_one_in_the_graph(triton_python: Path, tmp_path: Path) -> None:
    """As tensors they make other plans of what is kept for the backward pass: 2.7 GB more of GPT-2
    compiled."""
    dry_run(tmp_path, triton_python, GRAPH)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_odd_multiplication_is_padded(triton_python: Path, tmp_path: Path, dtype: str) -> None:
    dry_run(tmp_path, triton_python, PADDED.replace("DTYPE", dtype))


def test_kernels_chosen_by_measuring_are_a_doubt(
    compiled: Trace, triton_python: Path, tmp_path: Path
) -> None:
    trace = dry_run(tmp_path, triton_python, TRAIN.replace("HOW", MAX_AUTOTUNE))
    assert "autotuned" in {doubt.code for doubt in trace.doubts}
    assert "autotuned" not in {doubt.code for doubt in compiled.doubts}


def test_a_kernel_of_the_job_is_autotuned_with_the_buffer_of_a_real_benchmark(
    triton_python: Path, tmp_path: Path
) -> None:
    trace = dry_run(tmp_path, triton_python, KERNEL)
    # triton/testing.py, do_bench
    assert 256 * MIB in {allocation.size for allocation in trace.allocations}


def test_without_triton_graphs_run_as_they_are_and_the_estimate_says_so(
    job_python: Path, tmp_path: Path
) -> None:
    hidden = "import sys\nsys.modules['triton'] = None\n"
    trace = dry_run(tmp_path, job_python, hidden + TRAIN.replace("HOW", COMPILED))
    assert any("has no Triton" in reason for reason in estimate([trace], "h200", H200).reasons)
    eager = dry_run(tmp_path, job_python, TRAIN.replace("HOW", EAGER))
    assert trace.recorded["allocated_bytes"] == pytest.approx(
        eager.recorded["allocated_bytes"], rel=0.01
    )


def test_the_pools_of_graphed_callables_are_exact(job_python: Path, tmp_path: Path) -> None:
    trace = dry_run(tmp_path, job_python, GRAPHED_CALLABLE)
    assert "private-pool" in {doubt.code for doubt in trace.doubts}
    assert trace.steps == 6
    assert replay(trace).peak_reserved_bytes == trace.recorded["reserved_bytes"]


def test_compiled_blocks_of_fsdp2(triton_python: Path, tmp_path: Path) -> None:
    """Each keeps less for its backward pass than an eager one, and shards and gathers as that
    does."""
    rank = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    compiled = dry_run(tmp_path, triton_python, SHARDED.replace("HOW", "block.compile()"), **rank)
    eager = dry_run(tmp_path, triton_python, SHARDED.replace("HOW", "pass"), **rank)
    assert (compiled.world_size, compiled.steps, eager.steps) == (4, 4, 4)
    kept = 8192 * 1024 * 4  # bytes of one activation
    assert compiled.recorded["allocated_bytes"] <= eager.recorded["allocated_bytes"] - 2 * kept
    assert replay(compiled).peak_reserved_bytes == compiled.recorded["reserved_bytes"]


def test_coordinate_descent_measures_the_first_configuration_alone(
    tmp_path: Path, triton_python: Path
) -> None:
    dry_run(tmp_path, triton_python, TUNED)
